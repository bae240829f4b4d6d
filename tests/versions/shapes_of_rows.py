"""What a deployment may change of rows: sizes, kinds, places, neighbours."""

from streamfold import Key
from tests.versions.declared import Handler, Items, Shape, numbered, scored

FEW = (0, 0.003, 0.01, 0.03)
"""How often calls fail where a step takes hundreds of them."""


def top():
    play, stats = Key("TOP#{g}", "PLAY#{i}"), Key("TOP#{g}", "STATS")

    def leaders(most):
        return Handler(
            "leaders", play, stats, lambda item: [({}, {"leaders": ("top", most, item["score"], item["i"])})]
        )

    return Shape("top", [numbered(play, 6, scored, g="g")], {"shop": ([leaders(2)], [leaders(5)])})


def set_to_list():
    play, stats = Key("LEVEL#{g}", "PLAY#{i}"), Key("LEVEL#{g}", "STATS")

    def levels(form):
        return Handler("levels", play, stats, lambda item: [({}, {"levels": (form, item["score"])})])

    drawn = [numbered(play, 4, scored, g="g")]
    return Shape("set_to_list", drawn, {"shop": ([levels("set")], [levels("list")])}, refused=True, filled=True)


def moved():
    """The rows that an item adds to are named by another attribute, greatest values and all."""
    item, row = Key("MOVED#{i}", "X"), Key("MOVED-TO#{to}", "SUM")

    def extremes(by):
        def rows(item):
            values = {"n": ("count",), "best": ("max", item["score"]), "least": ("min", item["score"])}
            yield {"to": item[by]}, {**values, "last": ("latest", item["score"], item["i"])}

        return Handler("extremes", item, row, rows)

    return Shape("moved", [numbered(item, 4, scored)], {"shop": ([extremes("g")], [extremes("h")])})


def pages(name="pages", *, changed=False):
    """Items with 60 to 99 rows that all move at once."""
    item, row = Key(name.upper() + "#{i}", "X"), Key(name.upper() + "-ROW#{t}", "SUM")

    def draw(random, fields):
        score = random.randrange(10) * 10 + int(fields["i"])
        return {"score": score, "on": random.choice([0, 90, 99]), "from": random.choice([0, 0, 50])}

    def spread(most):
        def rows(item):
            for number in range(item["from"], item["from"] + item["on"]) if item["score"] < most else ():
                yield {"t": f"{number:03d}"}, {"n": ("count",), "best": ("max", item["score"])}

        return Handler(name, item, row, rows)

    code = [spread(1000)], [spread(50 if changed else 1000)]
    return Shape(name, [numbered(item, 3, draw)], {"shop": code}, rates=FEW, writes=4)


def _shared(name):
    order, item, row = Key(name + "#{o}", "META"), Key(name + "#{o}", "ITEM#{i}"), Key(name + "#{o}", "SUMMARY")

    def draw(random, fields):
        return {"status": random.choice(["open", "paid"]), "w": random.choice([1, 2]), "p": random.choice([5, 50])}

    def plain(item):
        yield {}, {"status": item["status"], "weight": ("sum", item["w"]), "seen": ("list", item["w"])}

    alone = Handler(name.lower(), order, row, plain)
    added = Handler(name.lower(), order, row, lambda item: [({}, {"weight": ("sum", item["w"])})])
    beside = Handler(name.lower() + "_items", item, row, lambda item: [({}, {"total": ("sum", item["p"])})])
    fields = [{"o": o, "i": i} for o in "12" for i in "12"]
    drawn = [
        Items(order, [{"o": o} for o in "12"], draw),
        Items(item, fields, draw),
    ]
    return drawn, [alone], [added, beside]


def plain_to_shared():
    """Rows that were put whole get a neighbour, and lose their plain attribute."""
    drawn, alone, shared = _shared("SHARED")
    return Shape("plain_to_shared", drawn, {"shop": (alone, shared)})


def shared_to_plain():
    drawn, alone, shared = _shared("ALONE")
    return Shape("shared_to_plain", drawn, {"shop": (shared, alone)}, left=("total",))


def added_and_retired():
    item = Key("ADDED#{i}", "X")

    def sums(name):
        row = Key(name.upper() + "#{g}", "SUM")
        return Handler(name, item, row, lambda item: [({}, {"n": ("count",), "s": ("sum", item["score"])})])

    old, new = [sums("kept"), sums("given_up")], [sums("kept"), sums("added")]
    return Shape("added_and_retired", [numbered(item, 4, scored)], {"shop": (old, new)})


def renamed():
    """The old handler is gone without a word, and another does the same."""
    item, row = Key("NAMED#{i}", "X"), Key("NAMED-SUM#{g}", "SUM")
    code = [[Handler(name, item, row, lambda item: [({}, {"n": ("count",)})])] for name in ("named", "called")]
    return Shape("renamed", [numbered(item, 4, scored)], {"shop": tuple(code)}, refused=True, filled=True)


def by_changed():
    """The attribute by which claimants of a unique row come first."""
    item, row = Key("UNIQUE#{i}", "X"), Key("ONLY#{g}", "X")

    def only(by):
        options = {"unique": True, "by": by, "smallest": True}
        return Handler("only", item, row, lambda item: [({}, {"who": item["i"]})], "index", options)

    def draw(random, fields):
        number = int(fields["i"])
        return scored(random, fields) | {"first": random.randrange(9) * 10 + number}

    code = [only("score")], [only("first")]
    return Shape("by_changed", [numbered(item, 4, draw)], {"shop": code}, refused=True, filled=True)


def switched_off():
    item, row = Key("OFF#{i}", "X"), Key("OFF-SUM#{g}", "SUM")
    off = Handler("off", item, row, lambda item: [({}, {"n": ("count",), "best": ("max", item["score"])})])
    return Shape("switched_off", [numbered(item, 4, scored)], {"shop": ([off], [off])}, off=("off",))


def raising():
    """The old code raises on some items, whose records are parked."""
    item, row = Key("BAD#{i}", "X"), Key("BAD-SUM#{g}", "SUM")

    def sums(*, careful):
        def rows(item):
            if item["h"] == "a" and not careful:
                raise ValueError("bad")
            yield {}, {"n": ("count",), "best": ("max", item["score"])}

        return Handler("sums_of_bad", item, row, rows, options={"on_error": "park"})

    code = [sums(careful=False)], [sums(careful=True)]
    return Shape("raising", [numbered(item, 4, scored)], {"shop": code}, parks=True)


def redacted():
    item = Key("SECRET#{i}", "X")
    code = [[Handler("history", item, None, kind="audit", options=options)] for options in ({}, {"redact": ["email"]})]
    drawn = numbered(item, 3, lambda random, fields: {"email": f"secret-{random.randrange(1000)}@example.com"})
    return Shape("redacted", [drawn], {"shop": tuple(code)}, images=True)


def expiring():
    """Rows that expire with the items they are made of, or that an operator removes, go before these do."""
    item, row = Key("EXPIRING#{g}", "PLAY#{i}"), Key("EXPIRING#{g}", "STATS")

    def stats(item):
        yield {}, {"plays": ("count",), "s": ("sum", item["score"]), "expires": ("max", item["expires"])}

    code = [Handler("stats", item, row, stats)]
    fields = [{"g": g, "i": i} for g in "12" for i in "123"]
    drawn = Items(item, fields, lambda r, f: scored(r, f) | {"expires": 1900000000})
    return Shape("expiring", [drawn], {"shop": (code, code)}, lost=True)


def lost():
    """Rows of all kinds, from two groups, that an operator removes: those that are added to, and those put whole."""
    item, row = Key("LOST#{i}", "X"), Key("LOST-SUM#{g}", "SUM")

    def sums(item):
        values = {"n": ("count",), "s": ("sum", item["score"]), "least": ("min", item["score"])}
        ordered = {"last": ("latest", item["score"], item["i"]), "top": ("top", 2, item["score"], item["i"])}
        yield {}, {**values, **ordered, "list": ("list", item["score"]), "set": ("set", item["score"])}

    def winners(item):
        yield {}, {"wins": item["score"], "who": item["i"], "m": ("sum", 1)}

    by = {"unique": True, "by": "score", "smallest": True}
    code = [
        Handler("lost_sums", item, row, sums),
        Handler("lost_best", item, row, lambda item: [({}, {"best": ("max", item["score"])})], options={"group": "b"}),
        Handler("lost_winners", item, Key("LOST-WON#{h}", "ROW"), winners),
        Handler("lost_only", item, Key("LOST-ONLY#{g}", "X"), lambda item: [({}, {"who": item["i"]})], "index", by),
        Handler("lost_own", item, Key("LOST-OWN#{i}", "ROW"), lambda item: [({}, {"score": item["score"]})]),
    ]
    return Shape("lost", [numbered(item, 5, scored)], {"shop": (code, code)}, lost=True)


def swapped():
    """The table is restored to an earlier moment under another name, and the state is not."""
    item, row = Key("SWAPPED#{i}", "X"), Key("SWAPPED-SUM#{g}", "SUM")
    code = [Handler("sums", item, row, lambda item: [({}, {"n": ("count",), "s": ("sum", item["score"])})])]
    return Shape("swapped", [numbered(item, 4, scored)], {"shop": (code, code)}, swapped=True, filled=True)


def large_values():
    """Values near the limits of what a row shows, and items whose contributions are larger than a ledger item."""
    item, row, text = Key("BIG#{i}", "X"), Key("BIG-SUM#{g}", "SUM"), Key("BIG#{i}", "PAGE#{t}")

    def draw(random, fields):
        return scored(random, fields) | {"text": random.choice("xyÄ") * 2000, "most": random.choice([1, 5])}

    def shown(most):
        def rows(item):
            listed = ("top", most, item["score"], item["text"][:300])
            yield {}, {"last": ("latest", item["score"], item["text"] * 2), "top": listed}

        return Handler("shown", item, row, rows)

    def texts(item):
        for number in range(item["most"]):
            yield {"t": f"{number}"}, {"text": item["text"] * 40}

    whole = Handler("texts", item, text, texts)
    return Shape("large_values", [numbered(item, 3, draw)], {"shop": ([shown(2), whole], [shown(3), whole])}, writes=12)


def large():
    """A list whose entries together are larger than the 1 MB of a page."""
    song, row = Key("ALBUM#{album}", "SONG#{i}"), Key("ALBUM#{album}", "ALL")
    album = "Ж" * 700

    def draw(random, fields):
        return {"title": fields["i"][:4] + "Щ" * 190}

    titles = Handler("titles", song, row, lambda item: [({}, {"n": ("count",), "titles": ("list", item["title"])})])
    fields = [{"album": album, "i": f"{number:04d}" + "s" * 180} for number in range(510)]
    return Shape(
        "large", [Items(song, fields, draw)], {"shop": ([titles], [titles])}, filled=True, rates=(0,), writes=2
    )


def pages_changed():
    return pages("pages_changed", changed=True)
