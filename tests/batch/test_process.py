"""The batch loop: what fails alone, what holds what, which images it needs, and what it tells."""

import json
from asyncio import CancelledError
from decimal import Decimal
from itertools import permutations
from pathlib import Path

import pytest

from streamfold import Add, App, Count, Delete, Failure, Key, Max, Put, Router, Row, Sum, Table
from streamfold.batch.process import plan_changes, process_event, read_changes
from streamfold.engines import EmbeddedEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import HandlerError, ImageError, ManifestError, RecordError, SettingsError, plain
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from tests.helpers.known import Known
from tests.helpers.model import stored
from tests.helpers.source import Source

SAMPLES = Path(__file__).parents[1] / "samples"
AWS_SAMPLE = json.loads((SAMPLES / "aws_sample.json").read_text())
LOCALSTACK = json.loads((SAMPLES / "localstack.json").read_text())
ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
STATUS = Key("STATUS#{order_id}", "ITEM#{sku}")
CHANGES = Key("CHANGES", "TOTAL")


def make_app():
    """A view, and an ``on`` that counts changes, of the same items; both refuse the price 13."""
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def order_total(item):
        yield Row(total=Sum(checked(item["price"])))

    @router.on(ITEM, into=CHANGES)
    def changes(change):
        if change.new:
            checked(change.new["price"], 14)
        yield Add(changes=1)

    return App("shop", routers=[router])


def checked(price, unlucky=13):
    if price == unlucky:
        raise LookupError(f"no price {price}")
    return price


@pytest.fixture
def app():
    return make_app()


def new_engine(app):
    return EmbeddedEngine(app.tables.values(), wanted=app.chains)


@pytest.fixture
def engine(app):
    return new_engine(app)


KNOWN = Known()
"""What a process that goes on from batch to batch knows of its engines."""


def process(app, engine, *records, **run):
    given = {"settings": Settings(), "known": KNOWN.of(engine, app), **run}
    return process_event(Runtime(app, engine, **given), list(records))


def failed(report):
    return {(failure.sequence, failure.handler) for failure in report.failures}


def sequence(record):
    return record["dynamodb"]["SequenceNumber"]


def test_poison_record_fails_alone(app, engine, source):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (12, 13, 14)]

    report = process(app, engine, *records)

    assert failed(report) == {(sequence(records[1]), "order_total"), (sequence(records[2]), "changes")}
    assert stored(app, engine) == {
        ("main", "ORDER#12", "TOTAL"): {"total": 12},
        ("main", "ORDER#14", "TOTAL"): {"total": 14},
        ("main", "CHANGES", "TOTAL"): {"changes": 2},
    }


def test_failure_names_handler_item_and_error(app, engine, source):
    (failure,) = process(app, engine, source.put("ORDER#1", "ITEM#a", price=13)).failures

    at = f"{__file__}:{checked.__code__.co_firstlineno + 2}"
    assert (failure.declared_at, failure.raised_at) == (app.routes[0].declared_at, at)
    assert str(failure) == f"handler 'order_total' ({at}), item ORDER#1 / ITEM#a: LookupError: no price 13"


@pytest.mark.parametrize(
    ("item", "line"),
    [
        ({"price": None}, 4),  # an aggregate refuses it
        ({}, 4),
        ({"price": 1, "at": None}, 5),  # what it formats in vain is told by another error
        ({"price": 1, "at": "2026", "more": {"_sf_n": 1}}, None),  # found after the yield
    ],
)
def test_a_failure_names_the_handler_s_own_line_that_raised(source, item, line):
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def totals(item):
        yield Row(
            total=Sum(item["price"]),
            month=Max(f"{item.get('at', ''):4}"),
            **item.get("more", {}),
        )

    app = App("shop", routers=[router])
    (failure,) = process(app, new_engine(app), source.put("ORDER#1", "ITEM#a", **item)).failures
    first = totals.__code__.co_firstlineno
    assert failure.declared_at == f"{__file__}:{first}"
    assert failure.raised_at == (line and f"{__file__}:{first + line - 1}")
    assert f"({failure.raised_at or failure.declared_at}), item" in str(failure)


def test_failure_of_an_error_with_a_long_text_leaves_out_its_middle():
    text = str(Failure("1", "ORDER#" + "1" * 3000, "order_total", ValueError("a" * 5000 + "z"), False, "shop.py:1"))
    assert len(text) < 2500
    assert text.startswith("handler 'order_total' (shop.py:1), item ORDER#1")
    assert text.endswith("az")


def test_change_that_fails_an_on_handler_holds_the_later_changes_of_its_item_only(app, engine, source):
    records = [
        source.put("ORDER#1", "ITEM#a", price=1),
        source.put("ORDER#1", "ITEM#a", price=14),
        source.put("ORDER#2", "ITEM#a", price=2),
        source.put("ORDER#1", "ITEM#a", price=3),
        source.put("ORDER#2", "ITEM#a", price=4),
    ]

    report = process(app, engine, *records)

    assert failed(report) == {(sequence(records[1]), "changes"), (sequence(records[3]), "changes")}
    assert [failure.held for failure in report.failures] == [False, True]
    assert stored(app, engine)["main", "CHANGES", "TOTAL"] == {"changes": 3}


def test_view_goes_on_with_an_item_whose_on_handler_is_held(app, engine, source):
    process(app, engine, *(source.put("ORDER#1", "ITEM#a", price=price) for price in (14, 5)))

    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 5}


def test_view_takes_the_newest_image_that_its_handler_works_on(app, engine, source):
    records = [source.put("ORDER#1", "ITEM#a", price=price) for price in (1, 2, 13)]

    report = process(app, engine, *records)

    assert failed(report) == {(sequence(records[2]), "order_total")}
    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 2}


def test_view_takes_back_what_an_image_contributed_on_which_the_handler_raises_now(app, engine, source):
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=1))
    mended = make_app()
    process(mended, engine, source.put("ORDER#1", "ITEM#a", price=13))

    assert process(mended, engine, source.put("ORDER#1", "ITEM#a", price=7)).failures == []
    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 7}


def test_record_that_failed_succeeds_when_it_comes_again_to_a_mended_handler(engine, source):
    records = [source.put("ORDER#1", "ITEM#a", price=price) for price in (14, 5)]
    process(make_app(), engine, *records)
    router = Router()
    router.routes = [route for route in make_app().routes if route.name != "changes"]

    @router.on(ITEM, into=CHANGES)
    def changes(change):
        yield Add(changes=1)

    mended = App("shop", routers=[router])

    assert process(mended, engine, *records).failures == []
    assert stored(mended, engine)["main", "CHANGES", "TOTAL"] == {"changes": 2}


def test_records_that_came_in_disorder_are_taken_in_theirs(app, engine, source):
    records = [source.put("ORDER#1", "ITEM#a", price=price) for price in (1, 2, 3)]

    process(app, engine, records[2], records[0], records[1], records[0])

    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 3}
    assert stored(app, engine)["main", "CHANGES", "TOTAL"] == {"changes": 3}


def test_older_stream_label_never_overwrites_a_newer_one(app, engine):
    old, new = Source(), Source(label="2026-04-01T09:00:00.000")
    new.sequence = 5

    process(app, engine, new.put("ORDER#1", "ITEM#a", price=2))
    process(app, engine, old.put("ORDER#1", "ITEM#a", price=1))

    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 2}


def test_number_that_38_digits_cannot_hold_fails_its_record_with_an_explanation(app, engine, source):
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=10**37))

    report = process(app, engine, source.put("ORDER#1", "ITEM#b", price=Decimal("0.01")))

    assert "38 digits" in str(report.failures[0].error)


# --- view types


def kinds(table):
    """One handler of each kind, over a table."""
    item, router = Key("ITEM#{sku}", "METADATA", table=table), Router()
    places = {name: Key(f"{name}#{{sku}}", "ROW", table=table) for name in ("view", "index", "whole", "fields", "old")}
    router.audit(item, into=Key("AUDIT#{sku}", "{version:rest}", table=table), name="audit")

    @router.view(item, into=places["view"])
    def view(item):
        yield Row(price=Sum(item["price"]))

    @router.index(item, into=places["index"])
    def index(item):
        yield Row(price=item["price"])

    @router.on(item, into=places["whole"])
    def whole(change, sku):
        yield Put(sku_again=sku)

    @router.on(item, into=places["fields"], changed=["price"])
    def fields(change):
        yield Put(price=change.new["price"])

    @router.on(item, into=places["old"], events=["MODIFY"])
    def old(change):
        yield Put(price=change.old["price"])

    return App("shop", routers=[router])


RUNS = {
    "NEW_AND_OLD_IMAGES": {"audit", "view", "index", "whole", "fields", "old"},
    "NEW_IMAGE": {"view", "index", "whole"},
    "OLD_IMAGE": {"whole", "old"},
    "KEYS_ONLY": {"whole"},
}


@pytest.mark.parametrize("view", RUNS)
def test_kind_runs_with_the_images_that_it_needs_and_is_refused_without(view):
    app = kinds(Table("main"))
    source = Source(view=view)
    records = [source.put("ITEM#a", price=1), source.put("ITEM#a", price=2)]

    report = process(app, new_engine(app), records[1])

    assert {route.name for route in app.routes} - {failure.handler for failure in report.failures} == RUNS[view]


@pytest.mark.parametrize(
    ("handler", "view", "error", "message"),
    [
        (
            "view",
            "OLD_IMAGE",
            HandlerError,
            "view 'view' needs the new image, which view type OLD_IMAGE does not carry.",
        ),
        ("index", "KEYS_ONLY", HandlerError, "Switch the stream to NEW_AND_OLD_IMAGES or NEW_IMAGE."),
        ("audit", "NEW_IMAGE", HandlerError, "audit 'audit' compares both images"),
        ("fields", "NEW_IMAGE", HandlerError, "on 'fields' compares both images"),
        (
            "old",
            "NEW_IMAGE",
            ImageError,
            "The old image of ITEM#a / METADATA was asked for, but the stream's view type",
        ),
    ],
)
def test_missing_image_is_told_with_handler_view_type_and_remedy(handler, view, error, message):
    app = kinds(Table("main"))
    source = Source(view=view)
    source.put("ITEM#a", price=1)

    report = process(app, new_engine(app), source.put("ITEM#a", price=2))

    (failure,) = [failure for failure in report.failures if failure.handler == handler]
    assert isinstance(failure.error, error)
    assert message in str(failure.error)
    assert "Switch the stream to NEW_AND_OLD_IMAGES" in str(failure.error)


def test_new_images_alone_cost_one_read_a_batch(source):
    source.more = {"view": "NEW_IMAGE"}
    app = make_view()
    engine = CountingEngine(new_engine(app))
    batches = [[source.put(f"ORDER#{number}", "ITEM#a", price=price) for number in range(60)] for price in (1, 2, 2)]

    for batch in batches:
        engine.calls.clear()
        assert process(app, engine, *batch).failures == []
        assert sum(call.requests for call in engine.named("read_state") if call.actions > 1) <= 1
    assert len(engine.named("read_state")) == 2
    assert stored(app, engine.engine)["main", "ORDER#59", "TOTAL"] == {"total": 2}


def test_both_images_cost_no_read_beside_the_manifest(source):
    app = make_view()
    engine = CountingEngine(new_engine(app))
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=1))
    engine.calls.clear()

    process(app, engine, source.put("ORDER#1", "ITEM#a", price=2))

    assert [call.name for call in engine.calls] == ["read_state", "transact"]


def make_view():
    router = Router()
    router.routes = [route for route in make_app().routes if route.name == "order_total"]
    return App("shop", routers=[router])


# --- what comes in


def test_sample_event_of_aws_runs_on_a_table_with_a_number_key_and_no_sort_key():
    table, texts = Table("ExampleTableWithStream", partition="Id", sort=None), Table("texts", partition="Id", sort=None)
    message, router = Key("{id:number}", table=table), Router()

    @router.view(message, into=Key("ALL", "MESSAGES"))
    def messages(item):
        yield Row(messages=Count())

    @router.on(message, into=Key("{id:number}", table=texts))
    def seen(change):
        yield Put(text=change.new["Message"]) if change.new else Delete()

    app = App("shop", routers=[router])
    engine = new_engine(app)

    assert process_event(Runtime(app, engine, Settings()), {"Records": AWS_SAMPLE["Records"][:2]}).failures == []
    assert stored(app, engine) == {
        ("main", "ALL", "MESSAGES"): {"messages": 1},
        ("texts", 101, None): {"text": "This item has changed"},
    }
    assert process_event(Runtime(app, engine, Settings()), AWS_SAMPLE).failures == []
    assert stored(app, engine) == {}


@pytest.mark.parametrize("event", [{"detail": {}}, {}, "text", None, {"Records": None}, {"Records": ["text"]}])
def test_unknown_envelope_raises_with_what_was_expected(app, engine, event):
    with pytest.raises(RecordError, match="expected a Lambda event"):
        process_event(Runtime(app, engine, Settings()), event)


@pytest.mark.parametrize("part", ["Keys", "SequenceNumber"])
def test_malformed_record_is_never_acknowledged(app, engine, source, part):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=1) for number in (1, 2)]
    number = sequence(records[0])
    del records[0]["dynamodb"][part]

    if part == "SequenceNumber":
        with pytest.raises(RecordError, match="SequenceNumber=None: expected up to 40 digits"):
            process(app, engine, *records)
    else:
        report = process(app, engine, *records)
        assert failed(report) == {(number, None)}
        assert ("main", "ORDER#2", "TOTAL") in stored(app, engine)


def test_record_of_a_table_that_the_application_does_not_know_fails_by_its_number(app, engine, source):
    known = source.put("ORDER#1", "ITEM#a", price=1)
    source.more = {"table": "invoices"}
    unknown = source.put("ORDER#2", "ITEM#a", price=1)

    report = process(app, engine, known, unknown)

    assert failed(report) == {(sequence(unknown), None)}


def test_records_that_no_route_wants_are_counted_by_prefix(app, engine, source):
    report = process(app, engine, source.put("PROFILE#1"), source.put("PROFILE#2"), source.put("x", "y"))

    assert report.unrouted == {"PROFILE#": 2, "keys without #": 1}


def test_records_that_the_state_holds_are_counted(app, engine, source):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=1) for number in (1, 2)]
    process(app, engine, records[0])

    assert process(app, engine, *records).known == 1


def test_only_the_handlers_of_the_functions_group_run(source):
    router = Router()

    @router.view(ITEM, into=TOTAL, group="totals")
    def order_total(item):
        yield Row(total=Sum(item["price"]))

    @router.on(ITEM, into=CHANGES, group="counts")
    def changes(change):
        yield Add(changes=1)

    app = App("shop", routers=[router])
    engine = new_engine(app)

    process_event(Runtime(app, engine, Settings(group="counts")), source.put("ORDER#1", "ITEM#a", price=1))

    assert stored(app, engine) == {("main", "CHANGES", "TOTAL"): {"changes": 1}}


def test_derived_row_that_comes_as_a_record_is_read_by_ledgers_only(source):
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def order_total(item):
        yield Row(total=Sum(item["price"]))

    router.audit(Key("ORDER#{order_id}", "{kind:rest}"), into=Key("AUDIT#{item:rest}", "{version:rest}"), name="audit")
    app = App("shop", routers=[router])
    engine = new_engine(app)

    process(app, engine, source.put("ORDER#1", "TOTAL", total=5, _sf_n=1), source.put("ORDER#1", "METADATA"))

    assert [key[1] for key in stored(app, engine)] == ["AUDIT#ORDER#1|METADATA"]


def test_handler_is_warned_about_a_near_miss_once(source):
    router = Router()

    @router.view(Key("ORDER#{number:06d}", "METADATA"), into=Key("ALL", "TOTAL"))
    def all_orders(item):
        yield Row(orders=Count())

    app, warnings = App("shop", routers=[router]), []
    run = Runtime(app, new_engine(app), Settings(), warn=warnings.append)

    for _ in range(2):
        process_event(run, source.put("ORDER#12", at=str(_)))

    (warning,) = map(plain, warnings)
    assert "Item ORDER#12 / METADATA fits" in warning
    assert "'12' is no {number:06d}" in warning


def timed(group="main"):
    router = Router()

    @router.on(Key("DEV#{id}", "AT#{at:datetime}"), into=CHANGES, group=group)
    def device(change):
        yield Add(changes=1)

    @router.view(ITEM, into=TOTAL)
    def totals(item):
        yield Row(lines=Count())

    return App("shop", routers=[router])


def test_records_that_nearly_match_a_source_are_counted_with_the_field_that_failed(source):
    records = [
        source.put("DEV#1", "AT#2026-03-01T10:00:00.123Z"),
        source.put("DEV#1", "AT#2026-03-01T10:00:00.123Z", x=1),
        source.put("DEV#2", "AT#soon"),
        source.put("DEV#2", "AT#2026-03-01T10:00:00.000000Z"),
        source.put("DEV#2", "METADATA"),
    ]
    app = timed()
    report = process(app, new_engine(app), *records)

    assert report.near_missed == 3
    assert report.near_misses == {("main: DEV#{id} / AT#{at:datetime}", "at"): 3}
    assert report.failures == []


def test_a_near_miss_of_a_key_that_another_function_reads_is_not_counted(source):
    app = timed("devices")
    record = source.put("DEV#1", "AT#soon")
    run = Runtime(app, new_engine(app), Settings(group="main"))

    assert process_event(run, record).near_missed == 0
    assert process_event(Runtime(app, new_engine(app), Settings(group="devices")), record).near_missed == 1


def test_a_row_that_nearly_matches_a_target_is_not_counted(source, app, engine):
    assert process(app, engine, source.put("STATUS#1", "ITEM#a#b")).near_missed == 0


def test_items_without_a_value_in_a_fields_place_have_a_key_of_their_own(source):
    router, warnings = Router(), []

    @router.view(
        Key("ORDER#{order_id}", "LINE#{sku}"), Key("ORDER#{order_id}", "LINE#"), into=Key("SKU#{sku}", "LINES")
    )
    def lines(item, sku="none"):
        yield Row(sku=sku, lines=Count())

    app = App("shop", routers=[router])
    run = Runtime(app, engine := new_engine(app), Settings(), warn=warnings.append)

    process_event(run, [source.put("ORDER#1", "LINE#"), source.put("ORDER#1", "LINE#a")])

    assert [key[1] for key in stored(app, engine)] == ["SKU#a", "SKU#none"]
    assert warnings == []


# --- time


def test_no_new_transaction_is_started_when_time_is_short_and_the_rest_is_reported(app, engine, source):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=1) for number in range(20)]
    counting = CountingEngine(engine)

    def left():
        return 100 if len(counting.named("transact")) < 2 else 1

    report = process_event(Runtime(app, counting, Settings(chunk_actions=10), seconds_left=left), records)

    assert len(counting.named("transact")) == 2
    untouched = {failure.sequence for failure in report.failures}
    assert all("time is nearly over" in str(failure.error) for failure in report.failures)
    assert process(app, engine, *(record for record in records if sequence(record) in untouched)).failures == []
    assert stored(app, engine)["main", "CHANGES", "TOTAL"] == {"changes": 20}


def test_external_handler_is_not_called_when_time_is_short(source, engine):
    called, router = [], Router()

    @router.on(ITEM, external=True)
    def send_mail(change):
        called.append(change)

    app = App("shop", routers=[router])
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=1) for number in range(2)]

    counting = CountingEngine(engine)

    def left():
        return 1 if counting.named("swap_state") else 100  # the manifest is noted

    report = process(app, counting, *records, outside=True, seconds_left=left)

    assert called == []
    assert failed(report) == {(sequence(record), "send_mail") for record in records}


# --- in process


def test_app_processes_an_event_and_returns_the_failures(app, engine, source):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 13)]

    failures = app.process({"Records": records}, engine=engine)

    assert [(failure.handler, failure.item) for failure in failures] == [("order_total", "ORDER#13 / ITEM#a")]
    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 1}


def test_app_takes_its_settings_from_the_environment(app, engine, source, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_TABLE_MAIN", "orders-prod")
    source.more = {"table": "orders-dev"}

    (failure,) = app.process(source.put("ORDER#1", "ITEM#a", price=1), engine=engine)

    assert "is of table 'orders-dev', but the application knows 'main' (really 'orders-prod')" in str(failure.error)


def test_renamed_handler_over_an_old_state_is_refused_before_anything_is_written(app, engine, source):
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=1))
    renamed = make_view()
    before = stored(app, engine)

    with pytest.raises(ManifestError, match=r"Handler 'changes' .* is known to the state"):
        process(renamed, engine, source.put("ORDER#1", "ITEM#a", price=2))
    assert stored(app, engine) == before


def test_plan_of_a_batch_can_be_had_without_writing_it(app, engine, source):
    record = source.put("ORDER#1", "ITEM#a", price=1)
    changes, _ = read_changes([record], Origins(app.source_tables, Settings()))

    plan, report = plan_changes(Runtime(app, engine, Settings()), changes)

    assert len(plan.transactions[0].writes) == 4
    assert report.records == {"order_total": 1, "changes": 1}
    assert stored(app, engine) == {}


def aggregates(*names):
    """An application of one or both views that add up in the rows of one owned target."""
    order, row = Key("ORDER#{order_id}", "METADATA"), Key("SHARED#{order_id}", "TOTAL")
    router = Router()
    if "orders" in names:

        @router.view(order, into=row)
        def orders(item):
            yield Row(orders=Sum(item["number"]))

    if "lines" in names:

        @router.view(ITEM, into=row)
        def lines(item):
            yield Row(lines=Sum(item["number"]))

    return App("shop", routers=[router])


def test_a_view_that_gets_a_neighbour_never_wipes_what_the_neighbour_wrote(source):
    older, newer = aggregates("orders"), aggregates("orders", "lines")
    engine = new_engine(newer)
    process(older, engine, source.put("ORDER#1", number=1))
    process(newer, engine, source.put("ORDER#1", "ITEM#a", number=5))
    process(older, engine, source.put("ORDER#1", number=2), settings=Settings(older_code=True))
    assert stored(newer, engine) == {("main", "SHARED#1", "TOTAL"): {"orders": 2, "lines": 5}}
    process(newer, engine, source.remove("ORDER#1"))
    assert stored(newer, engine) == {("main", "SHARED#1", "TOTAL"): {"lines": 5}}


def test_a_group_that_no_handler_is_of_is_refused_and_acknowledges_nothing(app, engine, source):
    with pytest.raises(SettingsError, match="STREAMFOLD_GROUP='mian' is no group of 'shop': expected main"):
        app.process([source.put("ORDER#1", "ITEM#a", price=1)], engine=engine, settings=Settings(group="mian"))


class Stopped(BaseException):
    """What a library raises that no handler of errors should take."""


def raising(error):
    """An application whose handler raises this for an item that costs 13."""
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def order_total(item):
        if item["price"] == 13:
            raise error
        yield Row(total=Sum(item["price"]))

    return App("shop", routers=[router])


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), CancelledError(), Stopped()], ids=repr)
def test_a_handler_that_would_end_the_program_fails_its_record_only(engine, source, error):
    app = raising(error)
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (12, 13)]
    (failure,) = process(app, engine, *records).failures
    assert f"raised {type(error).__name__}: a handler only computes" in str(failure)
    assert stored(app, engine)["main", "ORDER#12", "TOTAL"] == {"total": 12}


def test_an_interrupt_of_the_user_ends_the_program(engine, source):
    with pytest.raises(KeyboardInterrupt):
        process(raising(KeyboardInterrupt()), engine, source.put("ORDER#1", "ITEM#a", price=13))


def test_half_a_surrogate_pair_fails_its_record_only(app, engine, source):
    good, bad = source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#2", "ITEM#a", price=2)
    bad["dynamodb"]["Keys"]["PK"]["S"] = "ORDER#\ud800"
    (failure,) = process(app, engine, good, bad).failures
    assert failure.sequence == sequence(bad)
    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 1}


@pytest.mark.parametrize("image", [5, "text", ["list"]])
def test_an_image_that_is_no_object_fails_its_record_only(app, engine, source, image):
    good, bad = source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#2", "ITEM#a", price=2)
    bad["dynamodb"]["NewImage"] = image
    (failure,) = process(app, engine, good, bad).failures
    assert "has an image that is no object of attributes" in str(failure.error)
    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 1}


def test_a_history_row_that_would_be_too_large_has_digests_of_its_values(source):
    router = Router()
    router.audit(ITEM, name="audit")
    app = App("shop", routers=[router])
    engine = new_engine(app)
    records = [source.put("ORDER#1", "ITEM#a", text=letter * 250_000) for letter in "ab"]
    assert process(app, engine, *records).failures == []
    amended = list(stored(app, engine).values())[-1]
    assert {side: large["bytes"] for side, large in amended["changes"]["text"]["large"].items()} == {
        "old": 250_000,
        "new": 250_000,
    }


SHOP, ARCHIVE = Table("shop"), Table("archive")


def two_tables():
    """The same templates in two tables, counted in one."""
    router = Router()

    @router.view(Key("ORDER#{order_id}", "ITEM#{sku}", SHOP), into=Key("ALL", "TOTAL", SHOP))
    def items(item):
        yield Row(total=Sum(item["price"]))

    @router.view(Key("ORDER#{order_id}", "ITEM#{sku}", ARCHIVE), into=Key("ALL", "TOTAL", SHOP))
    def archived_items(item):
        yield Row(archived=Sum(item["price"]))

    return App("shop", routers=[router])


@pytest.mark.parametrize("told", [lambda record: record, KinesisTwin().append], ids=["stream", "kinesis"])
def test_route_gets_the_changes_of_its_keys_table_only_whatever_each_table_is_read_through(told):
    app = two_tables()
    engine = new_engine(app)
    shop, archive = Source(table="shop"), Source(table="archive")
    records = [shop.put("ORDER#1", "ITEM#a", price=3), told(archive.put("ORDER#1", "ITEM#a", price=4))]

    report = process(app, engine, *records)

    assert dict(report.records) == {"items": 1, "archived_items": 1}
    assert stored(app, engine) == {("shop", "ALL", "TOTAL"): {"total": 3, "archived": 4}}


def test_changes_of_one_microsecond_each_count_and_a_copy_does_not(app, engine, source):
    first, second = KinesisTwin(), KinesisTwin()
    one = first.append(source.put("ORDER#1", "ITEM#a", price=3))
    other = second.append(source.put("ORDER#1", "ITEM#a", price=4))  # each twin begins with the same microsecond

    assert process(app, engine, one, other, first.again(one)).failures == []
    assert process(app, engine, second.again(other)).known == 1
    assert stored(app, engine)["main", "CHANGES", "TOTAL"] == {"changes": 2}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_notices_of_one_millisecond_lead_to_the_newest_change_in_whatever_order_they_come(app, engine, source, order):
    kinesis = KinesisTwin()
    notices = [kinesis.append(source.put("ORDER#1", "ITEM#a", price=price)) for price in (3, 4, 5)]

    for notice in (*(notices[place] for place in order), kinesis.again(notices[0])):
        assert process(app, engine, notice).failures == []

    assert stored(app, engine)["main", "ORDER#1", "TOTAL"] == {"total": 5}
    assert stored(app, engine)["main", "CHANGES", "TOTAL"] == {"changes": 3}


def test_records_of_localstack_are_taken_once_and_in_their_order():
    router = Router()

    @router.view(Key("ORDER#{order_id}", "METADATA"), into=TOTAL)
    def total(order):
        yield Row(total=Sum(order["total"]))

    app = App("shop", routers=[router])
    engine = new_engine(app)
    first, second = LOCALSTACK["Records"]

    assert process(app, engine, second).failures == []
    assert process(app, engine, first, second).failures == []

    assert stored(app, engine) == {("main", "ORDER#1", "TOTAL"): {"total": 5}}
