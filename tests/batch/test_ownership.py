"""Whose rows a table has: the identity of a state, the markers of tables, and who is refused."""

import json
from decimal import Decimal

import pytest

from streamfold import Add, App, Count, Key, Put, Router, Row, Sum, Table
from streamfold.batch.manifest import read_manifest
from streamfold.batch.ownership import ADDED, ONTO, UNMARKED, change_marker, guarded, key_of, without
from streamfold.batch.process import check_application, process_event
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import NamedTable
from streamfold.errors import EngineError, NotOwned
from streamfold.keys.table import MAIN, MARKED, MARKER, MARKER_BYTES, MARKER_NUMBER, STATE
from streamfold.ledger.state_keys import identity_key, manifest_key
from streamfold.lifecycle.exports import open_export
from streamfold.records.change import Change, Origin
from streamfold.records.sources import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.exports import write_export
from tests.helpers.separate import Died, SeparateStore, process
from tests.helpers.source import Source

ORDER, TOTALS, OTHER = Key("ORDER#{order_id}", "METADATA"), Key("TOTALS", "ALL"), Key("OTHER", "ALL")
STATS = Table("stats", "id", None)
COPIED = NamedTable("orders", "t-2")


def totals(router, into=TOTALS, **options):
    @router.view(ORDER, into=into, **options)
    def totals(order):
        return Row(orders=Count(), total=Sum(order["total"]))


def second(router, into=OTHER, **options):
    @router.view(ORDER, into=into, **options)
    def second(order):
        return Row(orders=Count())


def app(*handlers, name="shop", **options):
    router = Router()
    for declare in handlers or (totals,):
        declare(router)
    return App(name, routers=[router], **options)


def delivered(application, store, *records, **settings):
    return process_event(process(application, store, **settings), list(records)).failures


def marker(store, key=TOTALS):
    return json.loads(store.rows[key_of(key)][MARKED]["S"])


def orders(count=3):
    source = Source(table="orders")
    return [source.put(f"ORDER#{number}", total=10) for number in range(count)]


@pytest.fixture
def records():
    return orders()


@pytest.fixture
def store(records):
    """A store on which the application has processed all records."""
    made = SeparateStore(app())
    assert delivered(app(), made, *records) == []
    return made


def refusal(application, store, *records, **settings):
    """The text of the refusal; no row has changed."""
    before = dict(store.rows)
    with pytest.raises(NotOwned) as refused:
        delivered(application, store, *(records or orders(1)), **settings)
    assert store.rows == before
    return str(refused.value)


# The three steps


def test_the_identity_is_put_before_the_marker_and_the_marker_before_the_manifest(records):
    store = SeparateStore(app())
    delivered(app(), store, *records)
    writes = [call for call in store.calls if call not in ("read_state", "read_rows")]
    assert writes[:3] == ["swap_state", "transact", "swap_state"]
    assert store.calls[store.calls.index("transact") + 1] == "read_rows"
    assert store.state[identity_key()]["s"] == marker(store)["shop"]["identity"]


def test_a_marker_holds_identity_application_templates_and_both_tables(store):
    assert marker(store) == {
        "shop": {
            "identity": store.state[identity_key()]["s"],
            "table": ["orders", "t-1"],
            "state": ["orders-state", "s-1"],
            "delimiter": "#",
            "epoch": 0,
            "handlers": {"totals": {ADDED: [["TOTALS", "ALL"]]}},
        }
    }


def test_a_process_that_dies_at_any_call_of_its_first_batch_leaves_a_table_that_the_next_one_marks(records):
    whole = SeparateStore(app())
    delivered(app(), whole, *records)
    for calls in range(len(whole.calls)):
        store = SeparateStore(app())
        store.dies_at = calls
        with pytest.raises(Died):
            delivered(app(), store, *records)
        store.dies_at = None
        if store.derived:
            assert marker(store)
        assert delivered(app(), store, *records) == []
        assert store.derived == whole.derived
        assert refusal(app(), SeparateStore(app(), rows=store))


def test_a_running_batch_reads_and_writes_nothing_of_markers(store):
    runtime = process(app(), store)
    process_event(runtime, orders(4)[3:])
    store.calls.clear()
    process_event(runtime, orders(5)[4:])
    assert store.calls == ["read_state", "transact"]


def test_a_new_process_that_finds_all_marked_reads_no_marker(store):
    store.calls.clear()
    delivered(app(), store, *orders(4)[3:])
    assert "read_rows" not in store.calls
    assert "swap_state" not in store.calls


def test_two_first_batches_of_one_state_both_go_on(records):
    store = SeparateStore(app())
    swap = store.swap_state

    def other_is_first(key, *rest):
        store.swap_state = swap
        check_application(process(app(), store))
        return swap(key, *rest)

    store.swap_state = other_is_first
    assert delivered(app(), store, *records) == []
    assert marker(store)["shop"]["identity"] == store.state[identity_key()]["s"]


def test_of_two_first_batches_with_states_of_their_own_one_is_refused(records):
    one = SeparateStore(app())
    other = SeparateStore(app(), rows=one, named={STATE.name: NamedTable("typo", "s-2")})
    transact = one.transact

    def other_is_first(*given):
        one.transact = transact
        check_application(process(app(), other))
        return transact(*given)

    one.transact = other_is_first
    with pytest.raises(NotOwned, match=r"'typo' \(s-2\)"):
        delivered(app(), one, *records)
    assert one.derived == {}
    assert delivered(app(), other, *records) == []


# Another state


def test_an_empty_state_is_refused_with_both_names_and_the_ways_on(store):
    empty = SeparateStore(app(), rows=store, named={STATE.name: NamedTable("orders-stat", "s-2")})
    text = refusal(app(), empty)
    assert "'orders-state' (s-1)" in text
    assert "'orders-stat' (s-2)" in text
    for way in ("STREAMFOLD_STATE_TABLE", "remove the rows and backfill", "streamfold adopt", "streamfold docs"):
        assert way in text


def test_a_state_that_was_emptied_under_its_own_name_is_refused(store):
    assert "another one" in refusal(app(), SeparateStore(app(), rows=store))


def test_a_state_of_another_region_is_refused_though_all_names_are_alike(store):
    west = store.restored(app(), main=NamedTable("orders", "t-west"), **{STATE.name: NamedTable("orders-state", "s-w")})
    west.state.clear()
    west._positions.clear()
    assert "(s-w)" in refusal(app(), west, epoch=1)


def test_a_restored_state_beside_the_table_is_refused_until_the_epoch_is_raised(store):
    old = store.restored(app(), **{STATE.name: NamedTable("restored", "s-2")})
    assert "'restored'" in refusal(app(), old)
    assert delivered(app(), old, *orders(4)[3:], epoch=1) == []
    assert delivered(app(), old, *orders(5)[4:], epoch=1) == []
    assert marker(old)["shop"]["state"] == ["restored", "s-2"]


def test_every_group_goes_on_after_a_restore_of_both_under_a_higher_epoch(records):
    both = app(totals, lambda router: second(router, Key("{order_id}", None, STATS), group="slow"))
    store = SeparateStore(both)
    for group in ("main", "slow"):
        assert delivered(both, store, *records, group=group) == []
    moved = store.restored(both, stats=NamedTable("copied", "t-3"), **{STATE.name: NamedTable("state", "s-2")})
    assert "'state'" in refusal(both, moved, *records, group="slow")
    for group in ("main", "slow"):
        assert delivered(both, moved, *orders(4)[3:], group=group, epoch=1) == []
    assert marker(moved, Key("{order_id}", None, STATS))["shop"]["table"] == ["copied", "t-3"]
    assert "'copied'" in refusal(both, store.restored(both, stats=NamedTable("copied", "t-3")), *records, group="slow")


def test_a_copy_of_the_table_with_a_state_that_has_no_manifest_is_refused(store):
    copied = store.restored(app(), main=COPIED)
    del copied.state[manifest_key("shop")]
    text = refusal(app(), copied)
    assert "'orders' (t-1)" in text
    assert "'orders' (t-2)" in text


def test_a_table_that_gets_another_real_name_is_refused(records):
    application = app(lambda router: totals(router, Key("{order_id}", None, STATS)))
    store = SeparateStore(application)
    delivered(application, store, *records)
    store.named |= {"stats": NamedTable("stats-copy", "t-9")}
    text = refusal(application, store)
    assert "'orders-stats'" in text
    assert "'stats-copy'" in text


def test_a_command_that_writes_no_manifest_refuses_other_names_too(store):
    old = store.restored(app(), **{STATE.name: NamedTable("restored", "s-2")})
    with pytest.raises(NotOwned, match="'restored'"):
        check_application(process(app(), old), write=False)


# Another application


def test_a_renamed_application_is_refused_with_both_names(store):
    text = refusal(app(name="store"), store)
    assert "'store'" in text
    assert "'shop'" in text
    assert "streamfold adopt --from shop" in text


@pytest.mark.parametrize("template", [("TOTALS", "ALL"), ("{name}", "ALL"), ("TOT{rest}", "{sort}"), ("{a}", "{b}")])
def test_an_application_whose_templates_overlap_is_refused(store, template):
    def wide(router):
        @router.view(ORDER, into=Key(*template))
        def wide(order):
            yield Row(**dict.fromkeys(Key(*template).fields, "ALL"), orders=Count())

    assert "'shop'" in refusal(app(wide, name="other"), store)


def test_an_application_with_targets_of_its_own_is_taken(store):
    other = app(second, name="other")
    assert delivered(other, store, *orders()) == []
    assert set(marker(store)) == {"shop", "other"}


def test_sums_of_an_on_handler_are_refused_beside_those_of_another_application(store):
    def adds(router):
        @router.on(ORDER, into=TOTALS)
        def added(change):
            yield Add(orders=1)

    assert "'shop'" in refusal(app(adds, name="other"), store)


def test_rows_that_are_put_whole_by_two_applications_are_left_to_their_owners(records):
    def own(router):
        @router.index(ORDER, into=Key("OWN#{order_id}", "X"))
        def owned(order):
            yield Row(total=order["total"])

    store = SeparateStore(app(own))
    assert delivered(app(own), store, *records) == []
    failures = delivered(app(own, name="other"), store, *records)
    assert len(failures) == len(records)


def test_copies_attributes_and_puts_need_no_marker(records):
    def copied(router):
        router.copy(ORDER, to=Table("copies"), name="copied")

    def derived(router):
        @router.attributes(ORDER)
        def known(order):
            return Row(known=True)

    def put(router):
        @router.on(ORDER, into=Key("PUT#{order_id}", "X"))
        def puts(change):
            yield Put(seen=True)

    application = app(copied, derived, put)
    assert list(guarded(application.routes)) == []
    store = SeparateStore(application)
    assert delivered(application, store, *records) == []
    assert key_of(TOTALS) not in store.rows


LINE = Key("ORDER#{order_id}", "LINE#{line}")


def summed(router):
    @router.attributes(LINE, of=ORDER)
    def summed(line):
        return Row(sum=Sum(line["amount"]))


def lines(*amounts):
    source = Source(table="orders")
    return [source.put("ORDER#1", f"LINE#{number}", amount=amount) for number, amount in enumerate(amounts)]


def test_an_empty_state_is_refused_that_would_begin_the_sums_of_items_anew():
    store = SeparateStore(app(summed))
    assert delivered(app(summed), store, *lines(5, 5)) == []
    assert marker(store)["shop"]["handlers"] == {"summed": {ONTO: [["ORDER#{order_id}", "METADATA"]]}}
    empty = SeparateStore(app(summed), rows=store, named={STATE.name: NamedTable("orders-stat", "s-2")})
    assert "'orders-stat' (s-2)" in refusal(app(summed), empty, *lines(5, 5, 3)[2:])


def test_sums_of_items_are_shared_with_other_applications():
    one, other = app(summed), app(summed, name="other")
    for store in (SeparateStore(one), MemoryEngine(one.tables.values())):
        for application in (one, other):
            report = process_event(Runtime(application, store, Settings()), lines(5, 5))
            assert report.failures == []


def test_a_name_of_an_application_in_a_local_store_is_refused_too(records):
    engine = MemoryEngine(app().tables.values())
    assert app().process(records, engine=engine, settings=Settings()) == []
    (failure,) = app(name="store").process(orders(1), engine=engine, settings=Settings())
    assert isinstance(failure.error, NotOwned)


# What is marked


def test_a_handler_that_gets_a_target_has_it_marked(store):
    def into_both(router):
        @router.view(ORDER, into=(TOTALS, OTHER), name="totals")
        def written(order):
            yield Row(TOTALS, orders=Count())

    both = app(into_both)
    check_application(process(both, store))
    assert marker(store)["shop"]["handlers"]["totals"][ADDED] == [["TOTALS", "ALL"], ["OTHER", "ALL"]]


def test_a_function_marks_the_tables_of_its_own_group_only(records):
    both = app(totals, lambda router: second(router, Key("{order_id}", None, STATS), group="slow"))
    store = SeparateStore(both)
    check_application(process(both, store, group="main"))
    assert set(marker(store)["shop"]["handlers"]) == {"totals"}
    assert ("stats", MARKER, None) not in store.rows
    assert {name for name, entry in read_manifest("shop", store).handlers.items() if UNMARKED in entry} == {"second"}
    check_application(process(both, store, group="slow"))
    assert ("stats", MARKER, None) in store.rows
    assert not [entry for entry in read_manifest("shop", store).handlers.values() if UNMARKED in entry]
    assert read_manifest("shop", store).marked["tables"] == {"main": "orders", "stats": "orders-stats"}


def test_removed_handlers_leave_the_marker(store):
    change_marker(process(app(), store), TOTALS, lambda found: without(found, "shop", ["totals"]))
    assert marker(store) == {}
    other = SeparateStore(app(), rows=store, named={STATE.name: NamedTable("other", "s-2")})
    assert delivered(app(name="other"), other, *orders(1)) == []


KEYS = {
    "numbers": (Key("{day:number}", "{hour:number}", Table("days", "d", "h")), (MARKER_NUMBER, MARKER_NUMBER)),
    "bytes": (Key("{name:binary}", None, Table("blobs", "b", None)), (MARKER_BYTES, None)),
    "texts": (Key("{a}", "{b}", Table("texts", "a", "b")), (MARKER, MARKER)),
}


@pytest.mark.parametrize("name", KEYS)
def test_no_template_matches_a_marker_of_any_type_of_key(name):
    key, values = KEYS[name]
    assert key_of(key) == (key.table.name, *values)
    assert key.match_values(*values) is None
    assert key.near_miss(*values) is None
    ordinary = {"numbers": (1, 2), "bytes": (b"x", None), "texts": ("x", "y")}[name]
    assert key.match_values(*ordinary) is not None


@pytest.mark.parametrize("name", KEYS)
def test_tables_with_any_type_of_key_are_marked(name, records):
    key, _ = KEYS[name]
    given = {"day": 1, "hour": 2, "name": b"x", "a": "x", "b": "y"}

    def counted(router):
        @router.view(ORDER, into=key)
        def counted(order):
            yield Row(**{field: given[field] for field in key.fields}, orders=Count())

    store = SeparateStore(app(counted))
    assert delivered(app(counted), store, *records) == []
    assert marker(store, key)["shop"]["handlers"] == {"counted": {ADDED: [[part.text for part in key.parts]]}}
    assert [row["orders"] for row in store.derived.values()] == [{"N": "3"}]
    assert refusal(app(counted), SeparateStore(app(counted), rows=store))


def test_an_item_of_the_application_under_the_key_of_the_marker_is_left_alone(records):
    store = SeparateStore(app())
    store.rows[key_of(TOTALS)] = {"PK": {"S": MARKER}, "SK": {"S": MARKER}, "own": {"S": "value"}}
    assert "no marker" in refusal(app(), store, *records)


def test_a_marker_that_cannot_be_read_stops_the_batch(store):
    store.rows[key_of(TOTALS)] = {**store.rows[key_of(TOTALS)], MARKED: {"S": "{"}}
    store.state.clear()
    with pytest.raises(EngineError):
        delivered(app(), store, *orders(1))


def test_the_stream_record_of_a_marker_reaches_no_handler_of_all_keys(records):
    def every(router):
        router.copy(Key("{a}", "{b}"), to=Table("copies"), name="every")

    application = app(every)
    image = {"PK": {"S": MARKER}, "SK": {"S": MARKER}, MARKED: {"S": "{}"}}
    record = {**records[0], "dynamodb": {**records[0]["dynamodb"], "Keys": {"PK": {"S": MARKER}, "SK": {"S": MARKER}}}}
    record["dynamodb"] = {**record["dynamodb"], "NewImage": image}
    store = SeparateStore(application)
    assert delivered(application, store, record) == []
    assert store.derived == {}


def test_the_least_number_is_the_key_of_a_marker_and_no_other_number_is():
    key, _ = KEYS["numbers"]
    assert key.match_values(MARKER_NUMBER + Decimal("1E+88"), 1) is not None


def test_a_marker_in_a_recording_is_no_item_of_a_local_state(records):
    image = {"PK": {"S": MARKER}, "SK": {"S": MARKER}, MARKED: {"S": "{}"}}
    body = {**records[0]["dynamodb"], "Keys": {"PK": {"S": MARKER}, "SK": {"S": MARKER}}, "NewImage": image}
    changes = [Change({**records[0], "dynamodb": body}, Origin(MAIN, ""))]
    assert list(newest_sources(changes)) == []


def test_a_marker_in_an_export_is_no_item(tmp_path):
    items = [{"PK": {"S": key}, "SK": {"S": key}} for key in ("one", MARKER, "two")]
    export = open_export(write_export(tmp_path, items), MAIN, None)
    assert [line.key[1] for line in export.lines()] == ["one", "two"]
