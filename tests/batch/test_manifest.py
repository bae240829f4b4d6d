"""What a state knows of its application: handlers that vanished or changed are refused with the remedy."""

import json
import re
from itertools import permutations
from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.batch.manifest import Manifest, begin_reading, check_manifest, note_backfill, read_manifest
from streamfold.batch.order import by_item
from streamfold.batch.process import check_application, process_event
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, ManifestError
from streamfold.ledger.state_keys import manifest_key
from streamfold.records.envelope import Seen
from streamfold.runtime import CallSlots, Flight, Knowledge, Runtime
from streamfold.settings import Settings
from tests.helpers.known import Known
from tests.helpers.source import Source

SOURCE, OTHER, DRAFT = Key("A#{a}", "X"), Key("B#{b}", "X"), Key("DRAFT#{a}", "X")
TOTAL, SECOND, OWN = Key("TOTAL", "X"), Key("SECOND", "X"), Key("OWN#{a}", "Y")
NOON, LATER = 1_772_366_400.0, 1_772_370_000.0
AT_NOON, AT_ONE = "2026-03-01T12:00:00+00:00", "2026-03-01T13:00:00+00:00"


KNOWN = Known()


def nothing(subject):
    yield from ()


class State:
    """The one item of a state table; ``busy`` times somebody else is faster."""

    separate = by_prefix = None

    def __init__(self, busy=0):
        self.items, self.busy, self.swaps = {}, busy, 0

    def read_state(self, keys, *, consistent):
        assert consistent
        return {key: dict(self.items[key]) for key in keys if key in self.items}

    def swap_state(self, key, attributes, revision):
        self.swaps += 1
        if self.busy:
            self.busy -= 1
            return False
        assert self.items.get(key, {}).get("r", 0) == revision
        self.items[key] = {**attributes, "r": revision + 1}
        return True

    @property
    def handlers(self):
        return json.loads(self.items[manifest_key("shop")]["handlers"])

    @property
    def tables(self):
        return json.loads(self.items[manifest_key("shop")]["tables"])


def app(*sources, name="total", kind="view", retired=(), more=(), **options):
    router = Router()
    getattr(router, kind)(*(sources or (SOURCE,)), name=name, **{"into": TOTAL, **options})(nothing)
    return App("shop", routers=[router, *more], retired=retired)


def check(application, state, *, sources=(), write=True, clock=NOON, warn=lambda _: None, known=None, **settings):
    """Holds an application against a state, as at the start of a process; ``sources`` are source kinds by table."""
    seen = {name: told if isinstance(told, Seen) else Seen(told) for name, told in dict(sources).items()}
    runtime = Runtime(application, state, Settings(**settings), known or Knowledge(), clock=lambda: clock, warn=warn)
    return check_manifest(runtime, seen, write=write)


def state_of(application):
    state = State()
    check(application, state)
    return state


def test_a_new_state_learns_every_handler():
    assert state_of(app()).handlers == {
        "total": {
            "kind": "view",
            "group": "main",
            "sources": ["main: A#{a} / X"],
            "targets": ["main: TOTAL / X"],
            "contested": [],
            "owned": [],
            "contributes": True,
            "shares": True,
            "since": "2026-03-01T12:00:00+00:00",
        }
    }


def test_the_same_application_writes_nothing_again():
    state = state_of(app())
    check(app(), state)
    assert state.swaps == 1


def test_a_handler_more_is_added():
    more = Router()
    more.audit(OTHER, name="audit")
    state = state_of(app())
    check(app(more=[more]), state)
    assert set(state.handlers) == {"total", "audit"}


def test_without_write_the_application_is_compared_only():
    state = State()
    check(app(), state, write=False)
    assert state.swaps == 0


def test_a_renamed_handler_is_refused_with_the_remedy():
    with pytest.raises(ManifestError) as caught:
        check(app(name="totals"), state_of(app()))
    assert str(caught.value) == (
        "Handler 'total' (view into main: TOTAL / X) is known to the state, but the application no longer has it. "
        'Was it renamed? Then keep its identity: name="total". Was it removed? Then App(..., retired=["total"]); '
        "its rows do not change. Is this code older than the code before? Then STREAMFOLD_OLDER_CODE=on lets it "
        "run. For a local state, replay --fresh starts anew."
    )


def test_a_retired_handler_need_not_be_named_again():
    state = state_of(app())
    check(app(name="totals", into=SECOND, retired=["total"]), state)
    check(app(name="totals", into=SECOND), state)
    assert state.handlers["total"]["retired"] == AT_NOON


def test_a_handler_that_is_declared_again_is_partial_since_it_was_retired():
    state = state_of(app())
    check(app(name="totals", into=SECOND, retired=["total"]), state)
    more = Router()
    more.view(SOURCE, into=SECOND, name="totals")(nothing)
    check(app(more=[more]), state, clock=LATER)
    assert Manifest.of(state.items[manifest_key("shop")]).partial_since("total") == AT_NOON


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ({}, {"kind": "index", "into": OWN}, "its kind from 'view' to 'index'"),
        ({}, {"group": "slow"}, "its group from 'main' to 'slow'"),
        ({"into": [TOTAL, SECOND]}, {}, "its targets from 'main: TOTAL / X, main: SECOND / X' to 'main: TOTAL / X'"),
        ({}, {"into": SECOND}, "its targets from 'main: TOTAL / X' to 'main: SECOND / X'"),
    ],
)
def test_a_handler_that_changed_its_meaning_is_refused_with_both(before, now, what):
    with pytest.raises(ManifestError) as caught:
        check(app(**now), state_of(app(**before)))
    assert f"Handler 'total' changed {what}: its earlier rows would be counted twice or never" in str(caught.value)
    remedy = 'Give the changed handler a new name, name="total_2", and a target or attributes of its own, and retire'
    assert remedy in str(caught.value)


def test_a_handler_that_lost_a_source_is_refused():
    message = "changed its sources from 'main: A#{a} / X, main: B#{b} / X' to 'main: A#{a} / X'"
    with pytest.raises(ManifestError, match=re.escape(message)):
        check(app(SOURCE), state_of(app(SOURCE, OTHER)))


def test_a_handler_may_gain_a_source_or_a_target():
    state = state_of(app())
    check(app(SOURCE, OTHER, into=[TOTAL, SECOND]), state)
    assert state.handlers["total"]["sources"] == ["main: A#{a} / X", "main: B#{b} / X"]


def test_a_handler_whose_rows_would_need_an_owner_that_they_do_not_bear_is_refused():
    state = state_of(app(SOURCE, kind="index", into=OWN))
    with pytest.raises(ManifestError, match="its rows from 'rows that one source could make' to 'rows that several"):
        check(app(SOURCE, DRAFT, kind="index", into=OWN), state)


def test_an_external_handler_is_of_a_kind_of_its_own():
    router = Router()
    router.on(SOURCE, external=True, name="total")(lambda change: None)
    with pytest.raises(ManifestError, match="changed its kind from 'on' to 'external'"):
        check(App("shop", routers=[router]), state_of(app(kind="on")))


def test_another_s_write_in_between_is_taken_into_account():
    state = State(busy=2)
    check(app(), state)
    assert state.swaps == 3


def test_a_manifest_that_others_write_all_the_time_is_given_up():
    state = State(busy=TRIES_MAX)
    with pytest.raises(Contended, match=f"The manifest of 'shop' was written by others {TRIES_MAX} times in a row"):
        check(app(), state)


def table(source, name=None, identity=None, epoch=0):
    return {"source": source, "name": name, "id": identity, "epoch": epoch}


def state_read_from(source, epoch=0):
    state = State()
    check(app(), state, sources={"main": source}, epoch=epoch)
    return state


def test_the_source_kind_of_a_table_is_learnt_from_its_first_records():
    state = state_of(app())
    assert state.tables == {}
    check(app(), state, sources={"main": "kinesis"})
    check(app(), state, sources={"main": "kinesis"})
    assert state.tables == {"main": table("kinesis")}
    assert state.swaps == 2


def test_a_further_table_is_added_beside_the_first():
    state = state_read_from("stream")
    check(app(), state, sources={"archive": "kinesis"})
    assert state.tables == {"main": table("stream"), "archive": table("kinesis")}


@pytest.mark.parametrize(("before", "now"), [("stream", "kinesis"), ("kinesis", "stream")])
def test_another_source_of_a_table_is_refused_with_the_remedy(before, now):
    state = state_read_from(before, epoch=3)
    with pytest.raises(ManifestError) as caught:
        check(app(), state, sources={"main": now}, epoch=3)
    words = {"stream": "its DynamoDB stream", "kinesis": "Kinesis"}
    assert str(caught.value) == (
        f"The state knows table 'main' through {words[before]}, and now its records come from {words[now]}: versions "
        "of the two do not compare. To change over for good, let the old source run dry, then raise STREAMFOLD_EPOCH "
        "to 4: every version is then newer than those of the old source. For a local state, replay --fresh starts anew."
    )


def test_a_higher_epoch_changes_the_source_and_the_way_back_needs_one_more():
    state = state_read_from("stream")
    check(app(), state, sources={"main": "kinesis"}, epoch=1)
    assert state.tables == {"main": table("kinesis", epoch=1)}
    with pytest.raises(ManifestError, match="raise STREAMFOLD_EPOCH to 2"):
        check(app(), state, sources={"main": "stream"}, epoch=1)


@pytest.mark.parametrize("write", [True, False])
def test_a_lower_epoch_than_another_function_s_is_refused_with_the_remedy(write):
    state = state_read_from("stream", epoch=2)
    with pytest.raises(ManifestError) as caught:
        check(app(), state, sources={"main": "stream"}, epoch=1, write=write)
    assert str(caught.value) == (
        "STREAMFOLD_EPOCH is 1 here, and 2 in another function of this state: versions of this epoch are older than "
        "those in the state, so the changes of these records would be passed over. Set STREAMFOLD_EPOCH=2 here, as in "
        "all functions and commands. For a local state, replay --fresh starts anew."
    )
    check(app(), state, sources={"main": "stream"}, epoch=2)


def test_a_warm_function_is_refused_at_its_next_batch_after_another_one_raised_the_epoch():
    application, source = view_of("one"), Source()
    engine = new_engine(application)
    run(application, engine, source.put("A#1", "X"))
    check_application(Runtime(application, engine, Settings(epoch=1)))
    with pytest.raises(ManifestError, match="STREAMFOLD_EPOCH is 0 here, and 1 in another function"):
        run(application, engine, source.put("A#2", "X"))


def test_the_manifest_keeps_the_highest_epoch_and_the_longest_retention_when_a_handler_is_marked():
    state = State()
    check(app(), state, epoch=3, retention_days=90)
    note_backfill("shop", state, range(3), ["total"], "job")
    manifest = read_manifest("shop", state)
    assert (manifest.epoch, manifest.retention_days) == (3, 90)
    assert "filling" in manifest.handlers["total"]


def test_a_retention_that_is_shorter_than_another_function_s_is_warned_of_once():
    state, warned = State(), []
    check(app(), state, retention_days=90)
    runtime = Runtime(app(), state, Settings(retention_days=30), warn=warned.append)
    for _ in range(2):
        runtime.known.revision = None
        check_manifest(runtime)
    text = (
        "STREAMFOLD_RETENTION_DAYS is 30 here, and 90 in another function of this state: claims and tombstones of "
        "this one expire first, and a record that is redriven later counts again. Set STREAMFOLD_RETENTION_DAYS=90 "
        "here."
    )
    assert warned == [text]
    assert read_manifest("shop", state).retention_days == 90


def test_a_longer_retention_is_noted_without_a_warning():
    state, warned = state_of(app()), []
    check(app(), state, retention_days=60, warn=warned.append)
    assert (read_manifest("shop", state).retention_days, warned) == (60, [])


def test_the_state_knows_the_table_by_its_name_and_where_it_may_be_asked_by_its_id():
    state = state_of(app())
    for seen in (Seen("stream"), Seen("stream", "orders"), Seen("stream", "orders", "1"), Seen("stream", "orders")):
        check(app(), state, sources={"main": seen})
    assert state.tables == {"main": table("stream", "orders", "1")}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Seen("stream", "orders-restored", "2"), "'orders-restored' (2)"),
        (Seen("stream", "orders", "2"), "'orders' (2)"),
        (Seen("kinesis", "archive"), "its records come from Kinesis"),
        (Seen("stream", "orders-restored"), "'orders-restored'"),
    ],
)
def test_another_table_is_refused_until_the_epoch_is_raised(other, named):
    state = state_of(app())
    check(app(), state, sources={"main": Seen("stream", "orders", "1")})
    with pytest.raises(ManifestError) as caught:
        check(app(), state, sources={"main": other})
    assert named in str(caught.value)
    assert "raise STREAMFOLD_EPOCH to 1" in str(caught.value)
    check(app(), state, sources={"main": other}, epoch=1)
    assert state.tables == {"main": table(*other, epoch=1)}


def test_the_message_names_both_tables_and_the_ways_to_go_on():
    state = state_of(app())
    check(app(), state, sources={"main": Seen("stream", "orders", "1")})
    with pytest.raises(ManifestError) as caught:
        check(app(), state, sources={"main": Seen("stream", "orders", "2")})
    assert str(caught.value) == (
        "The state is of table 'main' = 'orders' (1), and these records are of 'orders' (2): the state's items "
        "and rows are not those of this table, and amounts would be added to rows that have other ones. A table of "
        "its own needs a state of its own, STREAMFOLD_STATE_TABLE, and an empty one. Was the table restored? "
        "streamfold docs operations has the next steps. Where the state fits the rows of this table, raise "
        "STREAMFOLD_EPOCH to 1. For a local state, replay --fresh starts anew."
    )


def test_the_message_says_how_a_state_that_a_test_event_has_bound_is_mended():
    state = state_of(app())
    check(app(), state, sources={"main": Seen("stream", "ExampleTableWithStream", None)})
    with pytest.raises(ManifestError) as caught:
        check(app(), state, sources={"main": Seen("stream", "orders", None)})
    assert (
        "Was 'ExampleTableWithStream' the table of a test event? Then set STREAMFOLD_TABLE_MAIN=orders and "
        "STREAMFOLD_EPOCH=1; streamfold rebuild removes its contributions."
    ) in str(caught.value)


def counting(attribute):
    def handler(item):
        yield Row(**{attribute: Count()})

    return handler


def view_of(*names, into=TOTAL, source=SOURCE, **options):
    """An application of views that count one attribute each, named like its handler."""
    router = Router()
    for name in names:
        router.view(source, into=into, name=name)(counting(name))
    return App("shop", routers=[router], **options)


def run(application, engine, *records, clock=NOON, warn=lambda _: None, **settings):
    run = Runtime(
        application, engine, Settings(**settings), clock=lambda: clock, warn=warn, known=KNOWN.of(engine, application)
    )
    return [str(failure.error) for failure in process_event(run, list(records)).failures]


def new_engine(application):
    return MemoryEngine(application.tables.values())


def test_a_batch_reads_the_manifest_once_and_nothing_else_is_asked_of_it():
    application, source = view_of("one"), Source()
    engine = CountingEngine(new_engine(application))
    run(application, engine, source.put("A#1", "X"))
    for number in range(3):
        engine.calls.clear()
        assert run(application, engine, source.put(f"A#{number}", "X", n=number)) == []
        assert [(call.requests, call.actions) for call in engine.named("read_state")] == [(1, 1)]
        assert engine.named("swap_state") == []


def test_warm_code_ends_with_its_first_batch_after_a_handler_that_it_does_not_know():
    older, newer, source = view_of("one"), view_of("one", "two"), Source()
    engine = new_engine(older)
    run(older, engine, source.put("A#1", "X"))
    run(newer, engine)
    shown = dict(engine.rows)
    for _ in range(2):
        with pytest.raises(ManifestError, match=r"Handler 'two' .* STREAMFOLD_OLDER_CODE=on lets it run"):
            run(older, engine, source.put("A#2", "X"))
    assert engine.rows == shown


def test_a_handler_is_in_the_manifest_before_anything_of_it_is_written():
    application, source = view_of("one", "two"), Source()
    engine = new_engine(application)
    run(view_of("one"), engine, source.put("A#1", "X"))
    transact, known = engine.transact, []
    engine.transact = lambda *given: known.append(set(read_manifest("shop", engine).handlers)) or transact(*given)
    run(application, engine, source.put("A#2", "X"))
    assert known == [{"one", "two"}]


def test_older_code_runs_where_that_is_set_and_what_it_lacks_is_partial_from_then_on():
    older, newer, source, warned = view_of("one"), view_of("one", "two"), Source(), []
    engine = new_engine(older)
    run(newer, engine, source.put("A#1", "X"))
    for clock in (NOON, LATER):
        run(older, engine, source.put("A#2", "X", n=int(clock)), older_code=True, clock=clock, warn=warned.append)
    run(newer, engine, source.put("A#3", "X"), clock=LATER)
    manifest = read_manifest("shop", engine)
    assert (manifest.partial_since("two"), manifest.partial_since("one")) == (AT_NOON, None)
    why = "code without it, or without a source of it, runs (STREAMFOLD_OLDER_CODE)"
    assert warned == [f"Handler 'two' is partial since {AT_NOON}: {why}."]
    row = engine.read_rows([("main", "TOTAL", "X")])["main", "TOTAL", "X"]
    assert (row["one"], row["two"]) == (3, 2)


@pytest.mark.parametrize("turns", list(permutations(("older", "newer", "older", "newer"), 4))[:6])
def test_two_versions_that_both_run_write_the_manifest_no_more_than_once_each(turns):
    apps = {"older": app(name="total"), "newer": app(SOURCE, OTHER, name="total", into=[TOTAL])}
    state = state_of(apps["newer"])
    known = {}
    for turn in turns:
        known[turn] = check(apps[turn], state, known=known.get(turn), older_code=True)
    assert state.swaps == 2
    assert state.handlers["total"]["sources"] == ["main: A#{a} / X", "main: B#{b} / X"]
    assert state.handlers["total"]["partial"] == AT_NOON


def test_older_code_may_not_lack_a_target_or_be_of_another_kind():
    state = state_of(app(into=[TOTAL, SECOND]))
    for other in (app(), app(kind="index", into=OWN)):
        with pytest.raises(ManifestError, match="Handler 'total' changed its"):
            check(other, state, older_code=True)


def test_a_handler_that_is_new_to_a_state_is_partial_and_that_is_said_once():
    warned, state = [], state_of(app())
    more = Router()
    more.audit(OTHER, name="audit")
    for clock in (NOON, LATER):
        check(app(more=[more]), state, clock=clock, warn=warned.append)
    assert (state.handlers["audit"]["partial"], "partial" in state.handlers["total"]) == (AT_NOON, False)
    why = "it is new to this state. Items that were there before count from their next change on, unless they are"
    assert warned == [f"Handler 'audit' is partial since {AT_NOON}: {why} backfilled (streamfold docs backfill)."]


def test_a_renamed_sum_whose_old_name_is_retired_is_refused_before_it_doubles_a_row():
    source, before = Source(), view_of("total")
    engine = new_engine(before)
    run(before, engine, source.put("A#1", "X"), source.put("A#2", "X"))
    router = Router()
    router.view(SOURCE, into=TOTAL, name="totals")(counting("total"))
    renamed = App("shop", routers=[router], retired=["total"])
    (failed,) = run(renamed, engine, source.put("A#1", "X", changed=1))
    assert "rows still hold the values of the retired handler 'total'" in failed
    assert 'keep its identity, name="total", and take it out of retired=' in failed
    assert engine.read_rows([("main", "TOTAL", "X")])["main", "TOTAL", "X"]["total"] == 2


def test_a_retired_handler_of_an_attribute_that_another_yields_too_is_refused_at_the_start():
    source = Source()
    both = Router()
    for name in ("one", "two"):
        both.view(SOURCE, into=TOTAL, name=name)(counting("total"))
    engine = new_engine(app())
    run(App("shop", routers=[both]), engine, source.put("A#1", "X"))
    left = Router()
    left.view(SOURCE, into=TOTAL, name="one")(counting("total"))
    with pytest.raises(ManifestError, match="Handler 'two' is retired, and its attribute 'total' of main: TOTAL / X"):
        run(App("shop", routers=[left], retired=["two"]), engine, source.put("A#1", "X", n=1))
    assert "retired" not in read_manifest("shop", engine).handlers["two"]


def test_a_retired_handler_with_attributes_of_its_own_leaves_its_target_to_the_others():
    source, engine = Source(), new_engine(app())
    run(view_of("one", "two"), engine, source.put("A#1", "X"))
    assert run(view_of("one", retired=["two"]), engine, source.put("A#1", "X", n=1), source.put("A#2", "X")) == []
    row = engine.read_rows([("main", "TOTAL", "X")])["main", "TOTAL", "X"]
    assert (row["one"], row["two"]) == (2, 1)


@pytest.mark.parametrize(("before", "after"), [("index", "index"), ("view", "view"), ("index", "view")])
def test_rows_that_a_retired_handler_put_whole_are_left_to_it(before, after):
    state = state_of(app(kind=before, into=OWN))
    with pytest.raises(ManifestError) as caught:
        check(app(name="renamed", kind=after, into=OWN, retired=["total"]), state)
    assert str(caught.value) == (
        "Handler 'total' is retired, and its rows of main: OWN#{a} / Y would be written by 'renamed' too: the "
        "retired handler's amounts remain in them and would count twice. Was it renamed? Then keep its identity, "
        "name=\"total\", and take it out of retired=. Otherwise give 'renamed' another target. For a local state, "
        "replay --fresh starts anew."
    )


def test_the_order_of_claims_is_part_of_a_unique_index():
    options = {"kind": "index", "into": OWN, "unique": True}
    state = state_of(app(**options, by="at"))
    check(app(**options, by="at"), state)
    with pytest.raises(ManifestError, match=r"Unique index 'total' changed by= from 'at' to 'since'.*Keep by='at', or"):
        check(app(**options, by="since"), state)
    for option, value, before in (("smallest", True, "False"), ("ties", "largest key", "'smallest key'")):
        what = f"Unique index 'total' changed {option}= from {before} to {value!r}.*Keep {option}={before}, or give"
        with pytest.raises(ManifestError, match=what):
            check(app(**options, by="at", **{option: value}), state)
    with pytest.raises(ManifestError, match="changed by= from 'at' to None"):
        check(app(**options), state)


def test_two_applications_of_one_table_have_states_of_their_own():
    one, other = app(), app()
    for each in (one, other):
        check(each, state_of(each), sources={"main": Seen("stream", "orders", "1")})


def test_an_application_is_checked_against_each_state_that_it_is_run_over():
    application, first, second = app(), new_engine(app()), new_engine(app())
    for engine in (first, second, first):
        check_application(Runtime(application, engine, Settings()))
    assert set(read_manifest("shop", second).handlers) == {"total"}


# How it is read.


class Told(CallSlots):
    """CallSlots whose flights say what is done."""

    def __init__(self, told):
        self.told = told

    def flight(self):
        told = self.told

        class Flown(Flight):
            def begin(self, tag, call, places):
                super().begin(tag, call, places)
                told.append("begun")

            def join(self):
                told.append("joined")
                return super().join()

        return Flown()


def test_the_manifest_is_read_while_the_changes_are_routed():
    application, told = app(), []
    engine = MemoryEngine(application.tables.values())

    def routed(*arguments):
        told.append("routed")
        return by_item(*arguments)

    with patch("streamfold.batch.process.by_item", routed):
        process_event(Runtime(application, engine, Settings(), slots=Told(told)), [Source().put("A#1", "X")])
    assert told[:3] == ["begun", "routed", "joined"]


def test_a_manifest_that_is_written_meanwhile_is_read_again():
    application, state, known = app(), State(busy=1), Knowledge()
    read = begin_reading(Runtime(application, state, Settings(), known))()
    assert check_manifest(Runtime(application, state, Settings(), known, pause=lambda _: None), read=read) is known
    assert (state.swaps, known.revision) == (2, 1)
