"""One call proves an application: bugs that are planted are found, named, and made short."""

import itertools
import json
import os
import random
import runpy
import time
from collections import deque
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import strategies as st

from streamfold import Add, App, Count, Key, Router, Row, Sum, Table
from streamfold.engines import MemoryEngine
from streamfold.errors import RecordError
from streamfold.proofs.invariants import Invariants
from streamfold.records.values import to_json
from streamfold.testing import (
    Diverged,
    HandlerFails,
    NotDeterministic,
    Scenario,
    TwinError,
    Write,
    check,
    check_scenario,
)
from streamfold.writes.guarded import AddRow
from tests.helpers import everything
from tests.helpers.changed_writes import on_writes
from tests.helpers.records import item, record
from tests.helpers.source import Source

ORDER_ITEM, ORDER_TOTAL = everything.ORDER_ITEM, everything.ORDER_TOTAL
ITEM = {"price": 3, "quantity": 2}
COUNTER = Key("COUNTER", "TOTAL")


def app_with(function, *, kind="view", into=ORDER_TOTAL):
    router = Router()
    getattr(router, kind)(ORDER_ITEM, into=into)(function)
    return App("planted", routers=[router])


def total(item):
    yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count())


@pytest.fixture
def app():
    return app_with(total)


def test_right_application_passes_and_the_report_counts_what_was_tried(app):
    proof = check(app, {ORDER_ITEM: ITEM}, histories=50)
    assert proof.histories == 50
    assert proof.faults.total() > 0
    assert str(proof).startswith("50 histories of ")
    assert "0 diverged (seed 0" in str(proof)


def test_sums_of_more_than_28_digits_are_what_the_ledger_says(app):
    large, engine = Decimal("12345678901234567890123456789012345.678"), MemoryEngine(app)
    invariants, source = Invariants(app, engine), Source()
    for sku in "ab":
        app.process([source.put("ORDER#1", f"ITEM#{sku}", price=large, quantity=2)], engine=engine)
        invariants.check()


def test_same_seed_tries_the_same(app):
    first, again, other = (check(app, {ORDER_ITEM: ITEM}, histories=20, seed=seed) for seed in (7, 7, 8))
    assert first.faults == again.faults != other.faults


def test_items_may_be_several_examples_or_a_strategy(app):
    numbers = st.integers(0, 5)
    strategy = st.fixed_dictionaries({"price": numbers, "quantity": numbers})
    for items in ([ITEM, {"price": 1, "quantity": 1}], strategy):
        assert check(app, {ORDER_ITEM: items}, histories=10).changes


def test_items_may_come_from_a_recorded_file():
    from handlers import app

    assert check(app, recorded="events/sessions.jsonl", histories=10).changes


def test_writes_may_be_given_one_by_one(app):
    fields = {"order_id": "1", "sku": "a"}
    writes = [Write(ORDER_ITEM, fields, ITEM), Write(ORDER_ITEM, fields, None)]
    assert check(app, writes=writes, histories=10).changes == 20


def test_only_the_named_faults_are_injected(app):
    proof = check(app, {ORDER_ITEM: ITEM}, histories=50, faults=["answer-lost", "raises-once"])
    assert set(proof.faults) == {"answer-lost", "raises-once"}


@pytest.mark.parametrize(
    "clock",
    [
        lambda: datetime.now(UTC).year,
        lambda: int(time.strftime("%Y")),
        lambda: time.localtime().tm_year,
        lambda: len(time.ctime()) + time.gmtime().tm_year,
    ],
)
def test_handler_that_reads_a_clock_is_named_as_such(clock):
    def stamped(item):
        yield Row(at=Sum(clock()))

    named = r"Handler 'stamped' \(.*test_check.py:\d+\) .* it reads a clock: a year later"
    with pytest.raises(NotDeterministic, match=named):
        check(app_with(stamped), {ORDER_ITEM: ITEM})


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "XST-13:45"])
@pytest.mark.parametrize(
    "read",
    [
        lambda seconds: datetime.fromtimestamp(seconds).day,  # noqa: DTZ006 - the machine's zone is what is tested
        lambda seconds: time.localtime(seconds).tm_hour,
        lambda seconds: datetime.fromtimestamp(seconds, UTC).astimezone().minute,
        lambda seconds: int(time.mktime((2026, 3, 1, 0, 0, 0, 0, 0, 0))),
    ],
)
def test_handler_that_reads_the_zone_of_the_machine_is_named_as_such(read, zone, monkeypatch):
    def by_day(item):
        return Row(at=Sum(read(1_772_359_200 + item["price"])))

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with pytest.raises(NotDeterministic, match=r"'by_day' .* it reads the machine's time zone: .* Lambda has UTC"):
            check(app_with(by_day), {ORDER_ITEM: ITEM}, processes=0)
        assert os.environ["TZ"] == zone
    finally:
        monkeypatch.undo()
        time.tzset()


def test_handler_that_names_its_zone_is_proved():
    def by_day(item):
        return Row(at=Sum(datetime.fromtimestamp(1_772_359_200, UTC).day))

    assert check(app_with(by_day), {ORDER_ITEM: ITEM}, histories=2, processes=0).histories == 2


def test_sets_are_read_in_another_order_each_time_that_they_are_read():
    def second_reading(item):
        list(item["tags"])
        return Row(first=Sum(ord(next(iter(item["tags"])))))

    with pytest.raises(NotDeterministic, match="depends on the order of a set"):
        check(app_with(second_reading), {ORDER_ITEM: {**ITEM, "tags": {"a", "b", "c"}}}, processes=0)


@pytest.mark.parametrize("clock", [time.time_ns, lambda: int(time.time()), lambda: int(datetime.now(UTC).timestamp())])
def test_handler_that_reads_a_clock_which_may_tick_between_two_calls_is_told_of_it(clock):
    def stamped(item):
        yield Row(at=Sum(clock()))

    with pytest.raises(NotDeterministic, match="it reads a clock"):
        check(app_with(stamped), {ORDER_ITEM: ITEM})


def test_handler_that_makes_a_time_of_an_item_reads_no_clock():
    def dated(item):
        made = datetime.fromtimestamp(item["price"], UTC)
        yield Row(attributes={"sku": "a", "at": made, "day": made.date(), "due": date.fromisoformat("2026-03-01")})

    router = Router()
    router.view(ORDER_ITEM, into=Key("ORDER#{order_id}", "CARD#{sku}"))(dated)
    assert check(App("planted", routers=[router]), {ORDER_ITEM: ITEM}, histories=5).histories == 5


def test_function_that_was_made_outside_of_any_module_is_proved():
    names = {"Row": Row, "Count": Count}
    exec("def made(item):\n    return Row(lines=Count())", names)
    assert check(app_with(names["made"]), {ORDER_ITEM: ITEM}, histories=3).histories == 3


def test_handler_that_draws_at_random_is_named_as_such():
    def lottery(item):
        yield Row(total=Sum(random.randrange(10**9)))

    with pytest.raises(NotDeterministic, match=r"'lottery'.*called twice it gives two results"):
        check(app_with(lottery), {ORDER_ITEM: ITEM})


KEPT = {}


def kept_in_its_module(item, order_id):
    yield Row(total=Sum(KEPT.setdefault(order_id, item["price"])))


def seen_by_a_function():
    seen = set()

    def first_only(item, order_id):
        if order_id not in seen:
            seen.add(order_id)
            yield Row(total=Count())

    return first_only


@pytest.mark.parametrize("made", [lambda: kept_in_its_module, seen_by_a_function], ids=["module", "closure"])
def test_handler_that_gives_the_same_again_because_it_remembers_is_named_as_such(made):
    KEPT.clear()
    with pytest.raises(NotDeterministic, match="it remembers other calls"):
        check(app_with(made()), {ORDER_ITEM: ITEM}, histories=1)


GREATEST = 0


def greatest_so_far(item):
    global GREATEST  # noqa: PLW0603 - what is planted
    GREATEST = max(GREATEST, item["price"])
    yield Row(total=Sum(GREATEST))


def first_ever():
    first = None

    def relative(item):
        nonlocal first
        first = item["price"] if first is None else first
        yield Row(total=Sum(item["price"] - first))

    return relative


def on_itself():
    def keeping(item):
        keeping.first = getattr(keeping, "first", item["price"])
        yield Row(total=Sum(keeping.first))

    return keeping


def by_a_helper():
    def helped(price, known=[]):  # noqa: B006 - what is planted
        known.append(price)
        return known[0]

    def helping(item):
        yield Row(total=Sum(helped(item["price"])))

    return helping


def in_another_module(item):
    yield Row(total=Sum(everything.REMEMBERED.setdefault("first", item["price"])))


REMEMBERING = {
    "global": lambda: greatest_so_far,
    "nonlocal": first_ever,
    "attribute of a function": on_itself,
    "default of a helper": by_a_helper,
    "another module": lambda: in_another_module,
}
"""What makes each handler: one that was called before has remembered already."""


@pytest.mark.parametrize("made", REMEMBERING.values(), ids=REMEMBERING)
def test_handler_that_remembers_in_whatever_place_is_named_as_such(made, monkeypatch):
    monkeypatch.setattr(everything, "REMEMBERED", {}, raising=False)
    monkeypatch.setitem(globals(), "GREATEST", 0)
    with pytest.raises(NotDeterministic, match="it remembers other calls"):
        check(app_with(made()), {ORDER_ITEM: ITEM}, histories=1)


def test_list_of_the_last_calls_is_no_order_of_a_set():
    last = deque(maxlen=3)

    def average_of_the_last(item):
        last.append(item["price"])
        yield Row(total=Sum(sum(last)))

    def all_of_the_last(item):
        last.append(item["price"])
        yield Row(total=Sum(len(last) // 3))

    for handler in (average_of_the_last, all_of_the_last):
        last.clear()
        with pytest.raises(NotDeterministic, match=r"remembers other calls") as raised:
            check(app_with(handler), {ORDER_ITEM: ITEM})
        assert "depends on the order of a set" not in str(raised.value)


def test_tables_of_constants_are_no_memory(app):
    prices = {"a": [1, 2], "b": [3]}

    def priced(item):
        yield Row(total=Sum(sum(prices["a"])))

    assert check(app_with(priced), {ORDER_ITEM: ITEM}, histories=3).histories == 3


def test_handler_that_goes_by_the_order_of_a_set_is_named_as_such():
    def listed(item, sku):
        yield Row(tags=",".join(item["tags"]))

    router = Router()
    router.view(ORDER_ITEM, into=Key("ORDER#{order_id}", "TAGS#{sku}"))(listed)
    with pytest.raises(NotDeterministic, match="it depends on the order of a set"):
        check(App("planted", routers=[router]), {ORDER_ITEM: {**ITEM, "tags": {"red", "green", "blue"}}})


def test_handler_that_sorts_a_set_or_yields_a_row_for_each_of_its_members_is_taken():
    def listed(item):
        for tag in item["tags"]:
            yield Row(tag=tag, all=",".join(sorted(item["tags"])), held=item["tags"])

    router = Router()
    router.view(ORDER_ITEM, into=Key("ORDER#{order_id}", "TAG#{tag}#{sku}"))(listed)
    items = {ORDER_ITEM: {**ITEM, "tags": {"red", "green", "blue"}}}
    assert check(App("planted", routers=[router]), items, histories=3).histories == 3


def test_handler_that_remembers_is_named_as_such():
    calls = itertools.count()

    def remembering(item):
        yield Row(total=Sum(next(calls)))

    with pytest.raises(NotDeterministic, match="'remembering'"):
        check(app_with(remembering), {ORDER_ITEM: ITEM})


def test_handler_that_cannot_take_an_item_is_named_with_it():
    def picky(item):
        yield Row(total=Sum(item["missing"]))

    with pytest.raises(
        HandlerFails,
        match=r"handler 'picky' \(.*test_check.py:\d+\), item ORDER#1 / ITEM#1: AttributeMissing: The item has no",
    ):
        check(app_with(picky), {ORDER_ITEM: ITEM})


def test_write_that_is_wrong_is_found_and_made_short(app):
    def forgetful(add):  # a retraction is not carried out
        def added(write, *rest):
            amounts = {name: max(0, amount) for name, amount in write.amounts.items()}
            return add(write._replace(amounts=amounts), *rest)

        return added

    with on_writes(AddRow, made=forgetful), pytest.raises(Diverged) as raised:
        check(app, {ORDER_ITEM: ITEM})
    assert len(raised.value.scenario.writes) <= 5
    assert len(raised.value.scenario.script) <= 2
    assert "'TOTAL') has " in raised.value.problem  # a total or a number of lines
    assert "  put ORDER#" in str(raised.value)


def test_scenario_that_failed_is_saved_as_a_test_that_runs(tmp_path, app, monkeypatch):
    fields = {"order_id": "1", "sku": "a"}
    scenario = Scenario((Write(ORDER_ITEM, fields, ITEM), Write(ORDER_ITEM, fields, None)), 2, 10, {3: "answer-lost"})
    path = tmp_path / "test_saved.py"
    Diverged("rows differ", [], scenario, 0).save(path, "tests.helpers.everything:without_chains")

    module = runpy.run_path(str(path))

    assert module["SCENARIO"] == scenario
    with pytest.raises(FileExistsError):
        Diverged("rows differ", [], scenario, 0).save(path)
    check_scenario(app, module["SCENARIO"])


def test_key_that_no_handler_reads_is_refused(app):
    with pytest.raises(TwinError, match=r"items= names Key\('SESSION#\{session_id\}', 'METADATA'\), which no handler"):
        check(app, {everything.SESSION: {}})


def test_no_items_are_refused(app):
    with pytest.raises(TwinError, match="was given no items"):
        check(app)


def test_unknown_fault_is_refused_with_a_near_name(app):
    with pytest.raises(TwinError, match=r"Fault 'answer_lost' is not known. Did you mean 'answer-lost'\?"):
        check(app, {ORDER_ITEM: ITEM}, faults=["answer_lost"])


@pytest.mark.parametrize("options", [{"histories": 0}, {"histories": -1}, {"changes": 0}, {"changes": 1.5}])
def test_proof_of_nothing_is_refused(app, options):
    ((name, count),) = options.items()
    with pytest.raises(TwinError, match=f"check.. was given {name}={count}: expected a whole number, 1 or more"):
        check(app, {ORDER_ITEM: ITEM}, **options)


def test_unknown_source_is_refused(app):
    with pytest.raises(TwinError, match="was given source='Kinesis': expected 'stream' or 'kinesis'"):
        check(app, {ORDER_ITEM: ITEM}, source="Kinesis")


def test_counter_of_changes_is_proved_too():
    def counted(change):
        yield Add(changes=1)

    check(app_with(counted, kind="on", into=COUNTER), {ORDER_ITEM: ITEM}, histories=50)


def test_recorded_tables_are_called_what_the_environment_says(tmp_path, monkeypatch):
    router = Router()
    router.view(Key("ORDER#{order_id}", "ITEM#{sku}", Table("orders")), into=ORDER_TOTAL)(total)
    app = App("planted", routers=[router])
    file = tmp_path / "orders.jsonl"
    file.write_text(json.dumps(record(None, item("ORDER#1", "ITEM#a", **ITEM), table="orders-live")) + "\n")
    with pytest.raises(RecordError, match="STREAMFOLD_TABLE_ORDERS=orders-live"):
        check(app, recorded=file)
    monkeypatch.setenv("STREAMFOLD_TABLE_ORDERS", "orders-live")
    assert check(app, recorded=file, histories=2).changes


@pytest.mark.parametrize("given", ["items", "recorded"])
def test_a_name_in_a_declaration_that_no_item_has_is_left_out(given, tmp_path):
    router = Router()
    router.audit(ORDER_ITEM, redact=["prise"])
    app = App("shop", routers=[router])
    records = [record(None, item("ORDER#1", "ITEM#1", **ITEM), 1)]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(to_json(each) + "\n" for each in records))
    options = {"items": {ORDER_ITEM: ITEM}} if given == "items" else {"recorded": file}
    proof = check(app, histories=2, processes=0, **options)
    (line,) = [each for each in proof.left_out if "prise" in each]
    assert line.startswith("redact= of audit 'audit_order_item' (")
    assert line.endswith("has in the records. Did you mean 'price'?")
    assert line in str(proof)
