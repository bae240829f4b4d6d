"""Applications drawn from a seed, of which only the declarations matter: no handler is called."""

from random import Random

from streamfold import App, Document, Key, Lookup, Put, Router, Row, Table

MARKUP = "</script><img src=x onerror=document.title=1>&amp;`\"'"
KINDS = ("view", "view", "index", "looked_up", "on", "audit", "copy", "archive", "search")
ITEMS = 6


def drawn_application(seed, handlers=None):
    """An application of up to twenty handlers, in groups, with chains, lookups, indexes and markup in its keys."""
    random, router = Random(seed), Router()
    items = [Key(f"{random.choice(('', MARKUP))}ITEM{number}#{{id}}", "METADATA") for number in range(ITEMS)]
    rows = []
    for number in range(handlers or random.randint(1, 20)):
        kind, group = random.choice(KINDS), random.choice(("main", "main", "mails", "search"))
        declare(router, random, kind, number, {"group": group}, items, rows)
    return App(f"drawn{seed}", routers=[router])


def declare(router, random, kind, number, group, items, rows):
    item, name = random.choice(items), f"{kind}_{number}"
    more = {"name": name, **group}
    if kind in ("view", "index", "looked_up", "on"):
        row = Key(f"ROW{number}#{{group}}", f"{random.choice(('', MARKUP))}ITEM#{{id}}")
        if kind == "looked_up":
            other = random.choice([each for each in items if each != item])
            router.view(item, into=row, lookup={"other": Lookup(other, id="other_id")}, **more)(
                lambda item, other: Row(group=other["group"])
            )
        elif kind == "on":
            router.on(item, into=row, **more)(lambda change: Put(row))
        else:
            source = random.choice([item, *rows]) if kind == "view" else item
            getattr(router, kind)(source, into=row, **more)(lambda item: Row(group=item["group"]))
        rows.append(row)
    elif kind == "audit":
        router.audit(item, into=Key(f"AUDIT{number}#{{item:rest}}", "{version:rest}"), **more)
    elif kind == "copy":
        router.copy(item, to=Table(f"copies{number}"), **more)
    elif kind == "archive":
        router.archive(item, to=f"s3://removed-{number}/items", **more)
    else:
        router.search(item, to=f"index{number}", fields={"name": "text"}, **more)(
            lambda item: Document(name=item["name"])
        )
