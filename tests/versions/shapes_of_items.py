"""What a deployment may change of attributes that are derived onto items."""

from streamfold import Key
from tests.versions.declared import Handler, Items, Shape, numbered


def _parents(name, old, new):
    item, parent = Key(name + "-ITEM#{i}", "X"), Key(name + "#{c}", "META")

    def spent(by):
        return Handler(
            name.lower(),
            item,
            parent,
            lambda item: [({"c": item[by]}, {"spent": ("sum", item["p"]), "dearest": ("max", item["p"])})],
            "attributes",
        )

    def draw(random, fields):
        return {"p": random.choice([1, 5, 7]), "c": random.choice("ABCDE"), "d": random.choice("ABCDE")}

    bearers = Items(parent, [{"c": c} for c in "ABCDE"], lambda r, f: {"name": r.choice("xyz")}, touched=False)
    return Shape(name.lower(), [numbered(item, 3, draw), bearers], {"shop": ([spent(old)], [spent(new)])})


def parents():
    """Derived attributes of parents that items move between."""
    return _parents("PARENT", "c", "c")


def parents_moved():
    """The same, and the new code names the parent by another attribute."""
    return _parents("MOVED-PARENT", "c", "d")


def _orders(name):
    order, item = Key(name + "#{o}", "META"), Key(name + "#{o}", "ITEM#{i}")

    def draw(random, fields):
        return {"p": random.choice([1, 5, 7]), "w": random.choice([1, 2, 3]), "o": fields["o"]}

    def derived(handler, attribute, by, **options):
        return Handler(handler, item, order, lambda item: [({}, {attribute: ("sum", item[by])})], "attributes", options)

    fields = [{"o": o, "i": i} for o, i in ("11", "12", "21", "31")]
    bearers = Items(order, [{"o": o} for o in "123"], lambda r, f: {"name": r.choice("xyz")}, touched=False)
    return [Items(item, fields, draw), bearers], derived


def attribute_added():
    """A second handler derives an attribute onto items that bear one."""
    drawn, derived = _orders("LATE")
    total = derived("late_total", "total", "p")
    code = [total], [total, derived("late_words", "words", "w")]
    return Shape("attribute_added", drawn, {"shop": code}, bearers=0.4)


def attribute_renamed():
    drawn, derived = _orders("RENAMED")
    code = [derived("renamed", "total", "p")], [derived("renamed", "amount", "p")]
    return Shape("attribute_renamed", drawn, {"shop": code})


def two_groups():
    """A handler of a group of its own, in a function that is deployed at another time."""
    drawn, derived = _orders("GROUPS")
    total = derived("groups_total", "total", "p")
    words = derived("groups_words", "words", "w", group="search")
    return Shape("two_groups", drawn, {"shop": ([total], [total, words])})


def two_applications():
    drawn, derived = _orders("APPS")
    shop, billing = [derived("apps_total", "total", "p")], [derived("apps_owed", "owed", "w")]
    return Shape("two_applications", drawn, {"shop": (shop, shop), "billing": (billing, billing)})


def unmarked():
    """A writer puts derived attributes back without their mark, and later has one of its own by that name."""
    order = Key("OPEN#{i}", "META")

    def rows(item):
        if item["status"] == "open":
            yield {}, {"GSI1PK": "OPEN"}

    code = [Handler("open_orders", order, None, rows, "attributes")]
    drawn = numbered(order, 3, lambda random, fields: {"status": random.choice(["open", "paid", "paid"])})
    return Shape("unmarked", [drawn], {"shop": (code, code)}, own="GSI1PK", images=True)


def long_keys():
    """Keys of items, of parents and of rows near DynamoDB's limits."""
    item, parent, row = Key("L#{c}", "ITEM#{i}"), Key("L#{c}", "META#{m}"), Key("L#{c}", "SUM#{m}")
    c, m = "p" * 2040, "m" * 1015

    def rows(item):
        yield {"m": m}, {"spent": ("sum", item["score"]), "best": ("max", item["score"])}

    code = [Handler("long_row", item, row, rows), Handler("long_parent", item, parent, rows, "attributes")]
    bearers = Items(parent, [{"c": c, "m": m}], lambda r, f: {"name": r.choice("xyz")}, touched=False)
    drawn = Items(item, [{"c": c, "i": "i" * 900 + i} for i in "12"], lambda r, f: {"score": r.randrange(9)})
    return Shape("long_keys", [drawn, bearers], {"shop": (code, code)})
