"""Items that the writers of an application put where handlers would have rows: nobody else changes or deletes them."""

import pytest

from streamfold import Add, App, Count, Delete, Document, Key, Max, Put, Router, Row, Sum, Table, Top
from streamfold.batch.process import process_changes, process_event
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import MemoryEngine
from streamfold.lifecycle.other_rows import OtherRows
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.looked_up import LookupShop
from tests.helpers.records import change, item
from tests.helpers.source import Source
from tests.helpers.writers_items import WritersHistory

HISTORIES, NIGHTLY_HISTORIES = 500, 5_000
LEG = Key("LEG#{leg}", "META")
CARRIER, EXPIRING = (
    Key("CARRIER#{carrier}", "PROFILE"),
    Key("CARRIER#{carrier}", "PROFILE", table=Table("main", ttl="t")),
)
EACH = Key("EACH#{leg}", "PROFILE")
HERE, THERE = ("main", "CARRIER#x", "PROFILE"), ("main", "EACH#1", "PROFILE")
COPY = ("copies", "LEG#1", "META")
OWN = {"name": {"S": "Kite"}, "legs": {"N": "40"}}


def put(change):
    return Put(legs=1) if change.new else Delete()


def declared(kind, function, **options):
    """Declares a handler of a kind, and returns its router."""
    router = Router()
    getattr(router, kind)(LEG, name="legs", **options)(function)
    return router


def copying():
    router = Router()
    router.copy(LEG, to=Table("copies"))
    return router


def whole(leg):
    return Row(carrier="x", leg=1)


KINDS = {
    "view": (HERE, declared("view", lambda leg_: Row(carrier="x", legs=Count()), into=CARRIER)),
    "view of plain attributes": (HERE, declared("view", lambda leg_: Row(carrier="x", a=1, wins=1), into=CARRIER)),
    "view with Max": (HERE, declared("view", lambda leg_: Row(carrier="x", legs=Max(1)), into=CARRIER)),
    "view with Top": (HERE, declared("view", lambda leg_: Row(carrier="x", legs=Top(2, 1, by=1)), into=CARRIER)),
    "view that expires": (
        HERE,
        declared("view", lambda leg_: Row(carrier="x", legs=Count(), t=Max(4_000_000_000)), into=EXPIRING),
    ),
    "index": (THERE, declared("index", lambda leg_: Row(a=1), into=EACH)),
    "unique index": (HERE, declared("index", whole, into=CARRIER, unique=True)),
    "on with Add": (HERE, declared("on", lambda change: Add(carrier="x", legs=1), into=CARRIER)),
    "on with Put and Delete": (THERE, declared("on", put, into=EACH)),
    "copy": (COPY, copying()),
}


class Shop:
    """An application with one handler, over a table of this machine."""

    def __init__(self, kind):
        self.row, router = KINDS[kind]
        self.app = App("shop", routers=[router])
        self.engine = MemoryEngine(self.app.tables.values(), self.app.chains)
        self.number, self.images = 0, {}

    def deliver(self, *legs):
        """Legs come, or go where their attributes are None; returns the failures of the one batch."""
        changes = []
        for leg, attributes in legs:
            self.number += 1
            new = None if attributes is None else item(f"LEG#{leg}", "META", **attributes)
            changes.append(change(self.images.get(leg), new, self.number))
            self.images[leg] = new
        run = Runtime(self.app, self.engine, Settings(), pause=lambda _: None)
        return process_changes(run, changes).failures

    def own(self):
        """The writer puts an item over whatever is there."""
        _, partition, sort = self.row
        stored = self.engine.rows[self.row] = {"PK": {"S": partition}, "SK": {"S": sort}, **OWN}
        return dict(stored)

    @property
    def stored(self):
        return self.engine.rows.get(self.row)


@pytest.fixture(params=KINDS)
def shop(request):
    return Shop(request.param)


def test_an_item_that_was_there_before_is_refused_with_the_way_out(shop):
    own = shop.own()
    (failure,) = shop.deliver(("1", {"n": 1}))
    assert "belongs to the application itself" in str(failure.error)
    assert "Give the handler a target whose keys nobody else writes" in str(failure.error)
    shop.deliver(("1", {"n": 2}))
    shop.deliver(("1", None))
    assert shop.stored == own


def test_an_item_that_replaced_a_row_is_the_writer_s_from_then_on(shop):
    assert shop.deliver(("1", {"n": 1})) == []
    own = shop.own()
    shop.deliver(("1", {"n": 2}))
    shop.deliver(("1", None))
    assert shop.stored == own


def test_once_the_writer_s_item_is_gone_the_record_is_taken(shop):
    shop.own()
    assert shop.deliver(("1", {"n": 1})) != []
    del shop.engine.rows[shop.row]
    assert shop.deliver(("1", {"n": 2})) == []
    assert shop.stored is not None


def test_a_row_with_its_mark_is_the_framework_s_with_what_code_set_beside_it(shop):
    assert shop.deliver(("1", {"n": 1})) == []
    shop.stored["beside"] = {"S": "set by an update"}
    assert shop.deliver(("1", None)) == []
    assert shop.stored is None or "beside" in shop.stored or "_sf_v" in shop.stored


@pytest.mark.parametrize("kind", [each for each in KINDS if each.startswith("view")])
def test_what_comes_to_a_row_that_a_writer_replaced_is_refused(kind):
    shop = Shop(kind)
    assert shop.deliver(("1", {"n": 1}), ("2", {"n": 1})) == []
    own = shop.own()
    failures = shop.deliver(("1", None), ("3", {"n": 1}), ("2", {"n": 2}), ("4", {"n": 1}))
    assert {failure.item for failure in failures} == {"LEG#3 / META", "LEG#4 / META"}
    assert shop.stored == own


def test_an_addition_to_an_item_of_another_handler_s_kind_says_so():
    shop = Shop("view")
    shop.engine.rows[HERE] = {"PK": {"S": HERE[1]}, "SK": {"S": HERE[2]}, "_sf_v": {"S": "v"}, "a": encode(1)}
    (failure,) = shop.deliver(("1", {"n": 1}))
    assert "which was put or deleted before" in str(failure.error)


# Who reads such an item


def readers():
    """A view into profiles of carriers, one that reads these, and a history of carriers' items."""
    router = Router()
    router.view(LEG, into=CARRIER, name="legs")(lambda leg_: Row(carrier="x", legs=Count()))
    router.view(CARRIER, into=Key("ALL", "LEGS"), name="all")(lambda row: Row(legs=Sum(row["legs"]), carriers=Count()))
    router.view(Key("CARRIER#{carrier}", "{sort}"), into=Key("ALL", "ITEMS"), name="any")(lambda row: Row(n=Count()))
    router.audit(Key("CARRIER#{carrier}", "{sort}"))
    return App("shop", routers=[router])


def read_by(app, *images):
    """Delivers images of the carrier's item, one after another; returns the engine."""
    engine, before = MemoryEngine(app.tables.values(), app.chains), None
    for number, image in enumerate(images):
        new = image and {"PK": HERE[1], "SK": HERE[2], **image}
        run = Runtime(app, engine, Settings(), pause=lambda _: None)
        assert process_changes(run, [change(before, new, number)]).failures == []
        before = new
    return engine


def rows_of(engine, partition):
    return [decode({"M": row}) for key, row in sorted(engine.rows.items()) if key[1].startswith(partition)]


def test_a_view_of_rows_does_not_see_an_item_of_the_application_among_them():
    engine = read_by(readers(), {"legs": 40})
    assert [row["SK"] for row in rows_of(engine, "ALL")] == ["ITEMS"]


def test_a_view_of_rows_sees_that_a_writer_replaced_one():
    engine = read_by(readers(), {"legs": 3, "_sf_n": 3}, {"legs": 40})
    assert [(row["SK"], row.get("n")) for row in rows_of(engine, "ALL")] == [("ITEMS", 1)]


def test_an_item_of_the_application_has_a_history_and_a_row_has_none():
    app = readers()
    assert len(rows_of(read_by(app, {"legs": 40}, {"legs": 41}, None), "AUDIT")) == 3
    assert rows_of(read_by(app, {"legs": 3, "_sf_n": 3}, None), "AUDIT") == []


def test_a_search_of_rows_has_no_document_of_an_item_of_the_application_among_them():
    router = Router()
    router.view(LEG, into=CARRIER, name="legs")(lambda leg_: Row(carrier="x", legs=Count()))
    router.search(CARRIER, to="carriers", fields={"legs": "long"}, name="found")(lambda row: Document(legs=row["legs"]))
    shop = LookupShop(App("shop", routers=[router]))
    index = LocalIndex(shop.engine)

    def documents_after(**image):
        changed = shop.write(HERE[1], HERE[2], image)
        shop.engine.rows[HERE] = encode(shop.items[HERE[1:]])["M"]
        assert shop.process(changed, opened={OPENED: index}, outside=True) == []
        return [found.body["legs"] for found in index.documents("carriers")]

    assert documents_after(legs=40) == []
    assert documents_after(legs=3, _sf_n=3) == [3]
    assert documents_after(legs=41) == []


def test_a_feed_of_rows_has_no_post_of_an_item_of_the_application_among_them():
    router, table = Router(), Table("main", ttl="expires")
    post, at = Key("LOG#{author}", "{at:datetime.seconds}", table), "2026-03-01T08:00:00Z"
    follow = Key("U#{reader}", "FOLLOWS#{author}", table)
    into = Key("FEED#{reader}", "{at:datetime.seconds}#{author}", table)
    runs = Key("RUN#{author}", "{at:datetime.seconds}", table)
    router.view(runs, into=post, name="runs")(lambda run: Row(n=Count()))
    router.feed(post, audience=follow, into=into, keep_days=30, name="timeline")(lambda post, follow: Row(n=post["n"]))
    app, source = App("shop", routers=[router]), Source()
    engine = MemoryEngine(app)

    def feed_after(*records):
        run = Runtime(app, engine, Settings(), clock=lambda: 1_772_355_600.0, pause=lambda _: None)
        assert process_event(run, {"Records": list(records)}).failures == []
        return [row["n"] for row in rows_of(engine, "FEED#") if "n" in row]

    assert feed_after(source.put("U#bo", "FOLLOWS#ana"), source.put("LOG#ana", at, n=40)) == []
    assert feed_after(source.put("LOG#ana", at, n=3, _sf_n=3)) == [3]
    assert feed_after(source.put("LOG#ana", at, n=41)) == []
    engine.put_sources([(("main", *key), encode(image)["M"], "9") for key, image in source.items.items()])
    run = Runtime(app, engine, Settings(), clock=lambda: 1_772_355_600.0, pause=lambda _: None)
    assert OtherRows(run, live=False).verify([each for each in app.routes if each.name == "timeline"]).different == []


def test_rows_of_a_history_are_no_items_of_the_application():
    app = readers()
    (key,) = [key for route in app.routes if route.kind.name == "audit" for key in route.into]
    item_key = ("main", *key.compose({"item": "x", "version": "1"}))
    assert not app.is_writers(item_key, {"a": {"N": "1"}})


@pytest.mark.parametrize("seed", range(20))
def test_no_item_without_a_mark_is_changed(seed):
    WritersHistory(seed).run()


@pytest.mark.ci
def test_no_item_without_a_mark_is_changed_in_more_histories():
    for seed in range(20, HISTORIES):
        WritersHistory(seed).run()


@pytest.mark.nightly
def test_no_item_without_a_mark_is_changed_in_many_more_histories():
    for seed in range(HISTORIES, NIGHTLY_HISTORIES):
        WritersHistory(seed).run()
