"""One run after another: what is sent, what is hidden, who is reported, and what a lost state does."""

from dataclasses import replace
from functools import partial

import pytest

from streamfold import App, Document, Key, Router, Table, Unprocessable
from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.sink import BYTES_MAX, CONFLICT, Action, Answer
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.failures.repair import Repair
from streamfold.ledger.state_keys import document_key
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CounterWrite
from tests.derivations.search.applications import ORDER, SONG, one_item, several, with_parts
from tests.helpers.records import change, item

NOW = 1_772_355_600.0
FIRST = item("ORDER#1", "METADATA", title="first")
SECOND = item("ORDER#1", "METADATA", title="second")


class Refusing(LocalIndex):
    """An index that answers some documents otherwise, by id, and remembers all requests."""

    def __init__(self, engine, **answers):
        super().__init__(engine)
        self.answers = answers
        self.requests = []

    def bulk(self, actions):
        self.requests.append(actions)
        answers = [self.answers.get(action.id.replace("|", "_").replace("#", "_")) for action in actions]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        taken = iter(super().bulk([action for action, answer in zip(actions, answers, strict=True) if answer is None]))
        return [next(taken) if answer is None else answer for answer in answers]


class World:
    """An application on dictionaries, with its items and its index."""

    def __init__(self, app, index=LocalIndex, **settings):
        self.app = app
        self.engine = MemoryEngine(app.tables.values(), app.chains)
        self.index = index(self.engine)
        self.settings = Settings(**settings)
        self.warnings = []

    def run(self):
        opened = {OPENED: self.index}
        return Runtime(
            self.app,
            self.engine,
            self.settings,
            clock=lambda: NOW,
            pause=lambda _: None,
            opened=opened,
            warn=self.warnings.append,
        )

    def put(self, *changes):
        self.engine.put_sources(newest_sources(changes))
        return self.deliver(*changes)

    def deliver(self, *changes):
        return process_changes(self.run(), changes)

    def shown(self, index="orders"):
        hidden = ("_sf_h",)
        found = self.index.documents(index)
        return {each.id: {name: each.body[name] for name in each.body if name not in hidden} for each in found}


@pytest.fixture
def world():
    return World(one_item())


def test_an_item_has_its_document_under_its_key(world):
    report = world.put(change(None, FIRST))
    assert world.shown() == {"ORDER#1|METADATA": {"title": "first"}}
    assert (report.failures, report.tallies["order"].written) == ([], 1)


def test_a_removed_item_is_hidden_and_its_document_stays_with_a_version(world):
    world.put(change(None, FIRST))
    world.put(change(FIRST, None, 2))
    (found,) = world.index.documents("orders", hidden=True)
    assert world.shown() == {}
    assert found.body == {"_sf_gone": True, "_sf_at": int(NOW * 1000)}
    assert found.version == int(NOW * 1000) + 2


def test_a_request_that_lands_after_a_removal_brings_no_document_back():
    world = World(one_item(), partial(LocalIndex, forgets=True))
    world.put(change(None, FIRST))
    number = world.index.read("orders", ["ORDER#1|METADATA"])["ORDER#1|METADATA"].version
    world.put(change(FIRST, None, 2))
    (answer,) = world.index.bulk([Action("orders", "ORDER#1|METADATA", number, b'{"title":"first"}')])
    assert answer.status == CONFLICT
    assert world.shown() == {}


def test_an_item_without_a_document_any_more_is_hidden(world):
    world.put(change(None, FIRST))
    world.put(change(FIRST, item("ORDER#1", "METADATA", title="x", hidden=True), 2))
    assert world.shown() == {}


def test_old_records_lead_to_the_item_as_it_is(world):
    world.put(change(None, FIRST))
    world.put(change(FIRST, SECOND, 2))
    world.deliver(change(None, FIRST))
    assert world.shown() == {"ORDER#1|METADATA": {"title": "second"}}


def test_many_records_of_an_item_raise_its_counter_once(world):
    world.put(change(None, FIRST), change(FIRST, SECOND, 2))
    assert world.engine.state[document_key("shop", "order", ORDER_1)]["n"] == int(NOW * 1000) + 1


ORDER_1 = ("main", "ORDER#1", "METADATA")


def test_deleted_documents_are_deleted_where_that_is_asked_for():
    world = World(one_item(deletes="removed"))
    world.put(change(None, FIRST))
    world.put(change(FIRST, None, 2))
    assert list(world.index.documents("orders", hidden=True)) == []


def test_a_document_has_the_parts_of_its_item_and_rows_of_views():
    world = World(with_parts())
    lines = [item("ORDER#1", f"LINE#{sku}", price=price) for sku, price in (("a", 3), ("b", 4))]
    world.put(change(None, FIRST), *(change(None, line) for line in lines))
    for each in world.engine.pending(10):
        world.app.process({"Records": [each.record]}, engine=world.engine)
    assert world.shown()["ORDER#1|METADATA"] == {"title": "first", "prices": {"a": 3, "b": 4}, "total": 7}


def test_a_document_has_the_parts_of_all_pages(monkeypatch):
    monkeypatch.setattr("streamfold.commit.collections.PAGE_ITEMS", 2)
    world = World(with_parts())
    lines = [item("ORDER#1", f"LINE#{number}", price=number) for number in range(1, 6)]
    world.put(change(None, FIRST), *(change(None, line) for line in lines))
    assert world.shown()["ORDER#1|METADATA"]["prices"] == {str(number): number for number in range(1, 6)}


def test_a_part_that_comes_before_its_parent_makes_no_document():
    world = World(with_parts())
    world.put(change(None, item("ORDER#1", "LINE#a", price=3)))
    assert world.shown() == {}
    world.put(change(None, FIRST, 2))
    assert world.shown()["ORDER#1|METADATA"]["prices"] == {"a": 3}


def test_ids_that_follow_from_an_item_are_kept_until_they_are_hidden():
    world = World(several())
    both = item("SONG#1", "METADATA", titles={"en": "one", "de": "eins"})
    one = item("SONG#1", "METADATA", titles={"en": "uno"})
    key = document_key("shop", "song", ("main", "SONG#1", "METADATA"))
    world.put(change(None, both))
    assert set(world.engine.state[key]["ids"]) == {"1#de", "1#en"}
    assert "ttl" not in world.engine.state[key]
    world.put(change(both, one, 2))
    assert world.shown("songs") == {"1#en": {"language": "en", "title": "uno"}}
    assert set(world.engine.state[key]["ids"]) == {"1#en"}
    world.put(change(one, None, 3))
    assert world.shown("songs") == {}
    assert not world.engine.state[key].get("ids")
    assert "ttl" in world.engine.state[key]


def test_a_run_that_was_overtaken_notes_no_id_and_begins_again():
    """The newer run is not shown the older one's id, so it would never hide the document."""
    world = World(several())
    english, german = (item("SONG#1", "METADATA", titles={language: "one"}) for language in ("en", "de"))
    transact, newer = world.engine.transact, [change(english, german, 2)]

    def overtaken(writes, expires_at):
        if newer and isinstance(writes[0], CounterWrite):
            world.put(newer.pop())
        return transact(writes, expires_at)

    world.engine.transact = overtaken
    assert not world.put(change(None, english)).failures
    assert set(world.shown("songs")) == {"1#de"}


def test_two_documents_with_one_id_are_refused():
    router = Router()

    @router.search(SONG, to="songs", fields={"title": "text"})
    def song(item):
        for language in item["titles"]:
            yield Document(language=language)

    world = World(App("shop", routers=[router]))
    report = world.put(change(None, item("SONG#1", "METADATA", titles={"en": "one", "de": "eins"})))
    assert "two documents with the id" in str(report.failures[0].error)


def test_a_document_without_a_field_of_its_id_is_refused():
    router = Router()

    @router.search(SONG, to="songs", id="{song}#{language}", fields={"title": "text"})
    def song(item):
        return Document(title="x")

    world = World(App("shop", routers=[router]))
    report = world.put(change(None, item("SONG#1", "METADATA")))
    assert "needs a value for 'language'" in str(report.failures[0].error)


def test_a_handler_that_raises_fails_its_own_root_only(world):
    broken = item("ORDER#2", "METADATA")
    report = world.put(change(None, FIRST), change(None, broken, 2))
    assert [failure.sequence for failure in report.failures] == [change(None, broken, 2).sequence]
    assert world.shown() == {"ORDER#1|METADATA": {"title": "first"}}


def test_a_document_that_the_index_refuses_is_reported_alone():
    answer = Answer(400, "mapper_parsing_exception")
    world = World(one_item(), lambda engine: Refusing(engine, ORDER_2_METADATA=answer))
    report = world.put(*(change(None, item(f"ORDER#{number}", "METADATA", title="x"), number) for number in (1, 2, 3)))
    (failure,) = report.failures
    assert isinstance(failure.error.__cause__ or failure.error, Unprocessable)
    assert "mapper_parsing_exception" in str(failure.error)
    assert len(world.shown()) == 2


@pytest.mark.parametrize("error", [EngineUnavailable("away"), EngineError("no such index")])
def test_nothing_is_acknowledged_that_the_index_did_not_answer_for(error):
    world = World(one_item(), lambda engine: Refusing(engine, ORDER_1_METADATA=error))
    if type(error) is EngineError:
        with pytest.raises(EngineError, match="no such index"):
            world.put(change(None, FIRST))
    else:
        assert len(world.put(change(None, FIRST)).failures) == 1


def test_an_index_that_is_missing_starves_no_other_search():
    router = Router()
    router.routes = [*one_item().routes, *several().routes]
    missing = EngineError("no such index")
    world = World(App("shop", routers=[router]), lambda engine: Refusing(engine, ORDER_1_METADATA=missing))
    song = item("SONG#1", "METADATA", titles={"en": "one"})
    with pytest.raises(EngineError):
        world.put(change(None, FIRST), change(None, song, 2))
    assert world.shown("songs") == {"1#en": {"language": "en", "title": "one"}}


def test_a_newer_version_in_the_index_is_a_success(world):
    world.put(change(None, FIRST))
    key = document_key("shop", "order", ORDER_1)
    number = world.engine.state[key]["n"]

    class Overtaken(LocalIndex):
        def bulk(self, actions):
            world.engine.state[key] = {**world.engine.state[key], "n": number + 5}
            super().bulk([Action("orders", "ORDER#1|METADATA", number + 5, b'{"title":"newer"}')])
            return super().bulk(actions)

    world.index = Overtaken(world.engine)
    report = world.deliver(change(FIRST, SECOND, 2))
    assert not report.failures
    assert not world.warnings
    assert report.tallies["order"].unchanged == 1
    assert world.shown() == {"ORDER#1|METADATA": {"title": "newer"}}


@pytest.mark.parametrize("above", [1, 2, 10**12])
def test_a_state_that_is_behind_its_index_is_noticed_and_overcome(world, above):
    world.put(change(None, FIRST))
    key = document_key("shop", "order", ORDER_1)
    version = world.engine.state[key]["n"] + above
    world.index.bulk([Action("orders", "ORDER#1|METADATA", version, b'{"title":"before the backup"}')])
    report = world.put(change(FIRST, SECOND, 2))
    assert not report.failures
    assert world.shown() == {"ORDER#1|METADATA": {"title": "second"}}
    assert len(world.warnings) == (above > 1)


def test_a_lost_state_begins_above_all_that_it_ever_gave(world):
    world.put(change(None, FIRST))
    world.engine.state.clear()
    later = World.__new__(World)
    later.__dict__.update(world.__dict__)
    later.run = lambda: replace_clock(world.run(), NOW + 1)
    later.put(change(FIRST, SECOND, 2))
    assert world.shown() == {"ORDER#1|METADATA": {"title": "second"}}
    assert not world.warnings


def replace_clock(run, now):
    return replace(run, clock=lambda: now)


def test_a_document_in_the_last_version_is_told(world):
    world.index.bulk([Action("orders", "ORDER#1|METADATA", 2**63 - 1, b"{}")])
    (failure,) = world.put(change(None, FIRST)).failures
    assert "which no version follows" in str(failure.error)


def test_a_change_that_leaves_the_document_as_it_was_is_skipped_where_that_is_asked_for():
    world = World(one_item(skip_equal=True))
    world.put(change(None, FIRST))
    other = {**FIRST, "stock": 3}
    report = world.put(change(FIRST, other, 2))
    assert "order" not in report.tallies
    world.put(change(other, SECOND, 3), change(SECOND, other, 4))
    assert world.index.read("orders", ["ORDER#1|METADATA"])["ORDER#1|METADATA"].version == int(NOW * 1000) + 2


@pytest.mark.parametrize(("before", "after"), [(1, True), (False, 0), ([0], [False]), ({"a": True}, {"a": 1})])
def test_a_number_that_becomes_a_truth_value_is_not_skipped(before, after):
    world = World(one_item(skip_equal=True))
    first, second = ({**FIRST, "title": title} for title in (before, after))
    world.put(change(None, first))
    assert world.put(change(first, second, 2)).tallies["order"].written == 1
    assert repr(world.shown()) == repr({"ORDER#1|METADATA": {"title": after}})


def test_a_change_of_replication_attributes_alone_sends_no_document(world):
    world.put(change(None, FIRST))
    replicated = {**FIRST, "aws:rep:updatetime": 5}
    assert "order" not in world.put(change(FIRST, replicated, 2)).tallies
    world.put(change(replicated, {**replicated, "title": "second"}, 3))
    assert world.shown() == {"ORDER#1|METADATA": {"title": "second"}}


def test_changes_that_lead_there_and_back_are_not_skipped():
    world = World(one_item(skip_equal=True))
    world.put(change(None, FIRST))
    world.put(change(FIRST, SECOND, 2))
    world.put(change(SECOND, FIRST, 3))
    world.index.bulk([Action("orders", "ORDER#1|METADATA", int(NOW * 1000) + 4, b'{"title":"second"}')])
    report = world.deliver(change(FIRST, SECOND, 2), change(SECOND, FIRST, 3))
    assert report.tallies["order"].written == 1
    assert world.shown() == {"ORDER#1|METADATA": {"title": "first"}}


def test_a_repair_leads_the_document_to_the_item(world):
    world.put(change(None, FIRST))
    world.engine.put_sources([(ORDER_1, None, "99")])
    (repaired,) = Repair(world.run()).item(ORDER_1)
    assert (repaired.error, repaired.removed) == (None, 1)
    assert world.shown() == {}


def test_a_repair_of_a_part_leads_its_parents_document():
    world = World(with_parts())
    line = item("ORDER#1", "LINE#a", price=3)
    world.engine.put_sources(newest_sources([change(None, FIRST), change(None, line)]))
    repaired = Repair(world.run()).item(("main", "ORDER#1", "LINE#a"))
    assert {each.handler: each.error for each in repaired} == {"total": None, "order": None}
    assert world.shown()["ORDER#1|METADATA"]["prices"] == {"a": 3}


def test_more_parts_than_a_document_may_have_are_told_with_their_number(monkeypatch):
    monkeypatch.setattr("streamfold.commit.collections.PARTS_MAX", 2)
    world = World(with_parts())
    lines = [item("ORDER#1", f"LINE#{number}", price=1) for number in range(3)]
    report = world.put(change(None, FIRST), *(change(None, line) for line in lines))
    errors = {str(failure.error) for failure in report.failures if failure.handler == "order"}
    assert any("4 items and more are read" in error for error in errors)


def test_documents_of_a_batch_are_sent_before_all_of_them_are_made():
    router, made, made_before = Router(), [], []

    @router.search(ORDER, to="orders", fields={"title": "text"})
    def order(item):
        made.append(item["PK"])
        return Document(title=item["title"])

    class Watching(Refusing):
        def bulk(self, actions):
            made_before.append(len(made))
            return super().bulk(actions)

    world = World(App("shop", routers=[router]), Watching)
    titles = [change(None, item(f"ORDER#{n}", "METADATA", title="x" * 390_000), n) for n in range(1, 25)]
    assert not world.put(*titles).failures
    assert all(sum(len(action.body) for action in request) < BYTES_MAX for request in world.index.requests)
    assert made_before[0] < len(made) == 24


def test_items_of_two_tables_are_not_the_same_document():
    other = Key("ORDER#{order_id}", "METADATA", table=Table("old"))
    router = Router()

    @router.search(ORDER, other, to="orders", fields={"title": "text"})
    def order(item):
        return Document(title=item["title"])

    world = World(App("shop", routers=[router]))
    world.engine.put_sources([(("old", *ORDER_1[1:]), encode(SECOND)["M"], "1")])
    world.put(change(None, FIRST))
    Repair(world.run()).item(("old", *ORDER_1[1:]))
    assert world.shown() == {"main|ORDER#1|METADATA": {"title": "first"}, "old|ORDER#1|METADATA": {"title": "second"}}


def test_an_item_is_counted_where_no_index_is_at_hand(world):
    run = replace(world.run(), opened={}, source_items=False)
    report = process_changes(run, [change(None, FIRST)])
    assert report.counts["not_indexed"] == {"order": 1}
