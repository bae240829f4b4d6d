"""Nothing of an item in a log: all keys, names and values of these items bear a mark, and no log of Lambda has it."""

import logging
import traceback
from copy import deepcopy
from datetime import datetime
from decimal import Decimal

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from streamfold import Add, App, Change, Collect, Count, Delete, Key, Latest, Max, Put, Router, Row, Sum, Unprocessable
from streamfold.engines import MemoryEngine
from streamfold.errors import HandlerError, StreamfoldError
from streamfold.lambda_entry.function import TALKATIVE, Function
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from tests.helpers.records import item, record

MARKS = ("geheim", "7771777")
TEXT, NUMBER = MARKS[0], int(MARKS[1])
ORDER = Key("ORDER#{order}", "METADATA")
NUMBERED = Key("NUMBERED#{number:06d}", "METADATA")
OWN, OTHER = Key("OWN#{order}", "ROW"), Key("OTHER#{order}", "ROW")
SHARED = Key("SHARED#{name}", "ROW")
EMAIL = Key("EMAIL#{email}", "ROW")
QUIET = Settings(observe="off", state_table="state")


class MisbehavedError(Exception):
    """What a handler raises."""


class OwnError(StreamfoldError):
    """The same, of a class of the framework's."""


def marked(partition=f"ORDER#{TEXT}", **more):
    nested = {f"{TEXT}_name": [TEXT, {TEXT: NUMBER}]}
    return item(partition, text=TEXT, number=NUMBER, nested=nested, **{f"{TEXT}_attribute": TEXT}, **more)


def chained(item):
    try:
        raise KeyError(item["text"])
    except KeyError as error:
        raise MisbehavedError(str(item.raw)) from error


def raised(error):
    raise error


VIEWS = {
    "an error of its own": lambda item: raised(MisbehavedError(item["text"], dict(item))),
    "an error with a cause": chained,
    "a record that it will never process": lambda item: raised(Unprocessable(f"{item['text']} is {item['nested']}")),
    "an error of the framework's classes": lambda item: raised(HandlerError(item["text"])),
    "a subclass of them": lambda item: raised(OwnError(item["text"])),
    "an interrupted computation": lambda item: raised(SystemExit(item["text"])),
    "an attribute that is missing": lambda item: item[item["text"]],
    "a wrong format": lambda item: f"{item['text']:%Y}",
    "an inexact number": lambda item: Decimal(item["number"]) / 7,
    "no row": lambda item: item["text"],
    "a Put": lambda item: Put(OWN, text=item["text"]),
    "another target": lambda item: Row(OTHER, text=item["text"]),
    "a value too much": lambda item: Row(OWN, attributes={item["text"]: Count()}, **{item["text"]: Count()}),
    "a reserved name": lambda item: Row(OWN, attributes={f"_sf_{item['text']}": Count()}),
    "a plain attribute of a shared row": lambda item: Row(SHARED, name="a", attributes={item["text"]: 1}),
    "a key with a delimiter": lambda item: Row(SHARED, name=f"{item['text']}#", n=Count()),
    "a key that is missing": lambda item: Row(SHARED, n=Max(item["text"])),
    "a key that is too long": lambda item: Row(SHARED, name=item["text"] * 500, n=Count()),
    "another key than the source's": lambda item: Row(OWN, order=f"{item['text']}2", n=1),
    "half a surrogate pair": lambda item: Row(OWN, n=f"{item['text']}\ud800"),
    "a float": lambda item: Row(OWN, n=float(item["number"])),
    "a number that is none": lambda item: Row(OWN, n=Decimal("NaN7771777")),
    "a number of many digits": lambda item: Row(OWN, n=item["number"] * 10**40 + 1),
    "a moment without a zone": lambda item: Row(OWN, n=datetime(2026, 1, 1), m=item["text"]),  # noqa: DTZ001
    "an object": lambda item: Row(OWN, n={item["text"]: object()}),
    "a set of everything": lambda item: Row(OWN, n={item["text"], item["number"]}),
    "a sum of text": lambda item: Row(SHARED, name="a", n=Sum(item["text"])),
    "a maximum of a map": lambda item: Row(SHARED, name="a", n=Max(item["nested"])),
    "a maximum of long text": lambda item: Row(SHARED, name="a", n=Max(item["text"] * 1000)),
    "a value that is too long": lambda item: Row(SHARED, name="a", n=Latest(item["text"] * 10000, by=item["number"])),
    "too many values": lambda item: Row(SHARED, name="a", n=Collect(item["text"], most=10**9)),
    "a row that is too large": lambda item: Row(OWN, n=item["text"] * 100_000),
    "a row twice": lambda item: [Row(OWN, n=item["text"]), Row(OWN, n=item["number"])],
    "too many rows": lambda item: [Row(SHARED, name=f"{item['text']}{number}", n=Count()) for number in range(200)],
}


def shop(*handlers, kind="view", into=(OWN, SHARED), source=ORDER, **options):
    router = Router()
    for number, handler in enumerate(handlers):
        getattr(router, kind)(source, into=into, name=f"handler_{number}", **options)(yielding(handler))
    return App("shop", routers=[router])


def yielding(handler):
    def yields(item):
        found = handler(item)
        yield from found if isinstance(found, list) else [found]

    return yields


class Logs(logging.Handler):
    """All that is logged, with everything that a log record holds."""

    def __init__(self):
        super().__init__(logging.NOTSET)
        self.texts = []

    def emit(self, record):
        self.texts.append(f"{record.getMessage()} {vars(record)} {record.exc_text} {record.exc_info}")


@pytest.fixture
def logs():
    """Everything is logged, as in a function whose log level is DEBUG."""
    handler, loggers = Logs(), [logging.getLogger(name) for name in (None, "streamfold", *TALKATIVE)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    loggers[0].addHandler(handler)
    yield handler
    loggers[0].removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def said(logs, capfd):
    """What Lambda would log of an invocation, with the text of what it raises; none of it may have a mark."""

    def said(function, *records):
        try:
            response = str(len(function({"Records": list(records)}, None)["batchItemFailures"]))
        except Exception as error:  # noqa: BLE001 - whatever is raised is logged
            response = "".join(traceback.format_exception(error)) + repr(error)
        text = "\n".join([response, *logs.texts, *capfd.readouterr()])
        assert not [mark for mark in MARKS if mark in text.lower()], text
        return text

    return said


def local(app, settings=QUIET):
    """A function on an engine in memory."""
    function = Function(app, settings, client=object())
    function.engine = MemoryEngine(app.tables.values())
    return function


def inserted(*items):
    return [record(None, each, 10**20 + number) for number, each in enumerate(items)]


@pytest.mark.parametrize("what", VIEWS)
def test_nothing_of_an_item_is_logged_whatever_its_handler_yields_or_raises(what, said):
    text = said(local(shop(VIEWS[what])), *inserted(marked()))
    assert "record failed and is redelivered" in text
    assert "'error_type': " in text


@pytest.mark.parametrize("what", ["an error of its own", "an error with a cause", "a wrong format"])
def test_of_what_a_handler_raises_the_type_and_the_place_are_logged(what, said):
    text = said(local(shop(VIEWS[what])), *inserted(marked()))
    assert f"'at': '{__file__}:" in text
    assert "'reason': ''" in text or "has another type than the format is for (...)" in text


def test_the_reason_is_logged_without_what_it_tells_of_the_item(said):
    text = said(local(shop(VIEWS["a sum of text"])), *inserted(marked()))
    assert "Sum(...) is of type str, expected int or Decimal" in text


def test_a_warning_of_a_key_that_nearly_fits_names_template_and_field_once(said):
    app = shop(lambda item: Row(SHARED, name="a", n=Count()), source=NUMBERED, into=(SHARED,))
    items = [marked(f"NUMBERED#{TEXT}"), marked(f"NUMBERED#{TEXT}2"), marked(f"NUMBERED#{NUMBER}")]
    text = said(local(app), *inserted(*items))
    assert text.count("'levelname': 'WARNING'") == 2  # the key that nearly fits, and how many records there were
    assert "Item ... fits Key('NUMBERED#{number:06d}', 'METADATA')" in text
    assert "but for 'number': ... is no {number:06d}" in text


def damaged(*path, value=TEXT):
    found = at = deepcopy(record(marked(), marked(more=1), 5))
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return found


BODY = "dynamodb"
DAMAGED = {
    "event": damaged("eventName"),
    "keys": damaged(BODY, "Keys"),
    "key's name": damaged(BODY, "Keys", value={TEXT: {"S": TEXT}, "SK": {"S": TEXT}}),
    "key's value": damaged(BODY, "Keys", "PK", value={TEXT: TEXT}),
    "body": damaged(BODY, value={TEXT: TEXT}),
    "no body": {TEXT: TEXT, "eventName": TEXT},
    "image": damaged(BODY, "NewImage"),
    "image's value": damaged(BODY, "NewImage", "number", value={"N": TEXT}),
    "image's nested value": damaged(BODY, "NewImage", "nested", value={"L": [{TEXT: TEXT}]}),
    "table": damaged("eventSourceARN", value=f"arn:aws:dynamodb:eu-west-1:1:table/shop/stream/{TEXT}"),
    "origin": damaged("eventSourceARN"),
    "source": damaged("eventSource"),
    "text": TEXT,
    "kinesis": {"eventSource": "aws:kinesis", "kinesis": {"sequenceNumber": "5", "data": TEXT}},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_nothing_of_a_malformed_record_is_logged(what, said):
    said(local(shop(lambda item: Row(OWN, n=item["number"], nested=item["nested"]))), DAMAGED[what])


def test_nothing_of_a_record_without_images_is_logged(said):
    only_keys = record(marked(), marked(more=1), 5, view="KEYS_ONLY")
    assert "Switch the stream" in said(local(shop(lambda item: Row(OWN, n=item["number"]))), only_keys)


def test_nothing_of_a_change_that_came_through_kinesis_is_logged(said):
    bad = KinesisTwin().append(record(None, marked(), 5))
    assert "'reason': ''" in said(local(shop(VIEWS["an error of its own"])), bad)


@pytest.mark.parametrize("effect", [Put(OWN, n={1, TEXT}), Add(SHARED, name=TEXT, n=TEXT), Delete(OWN, n=TEXT)])
def test_nothing_of_what_a_function_of_changes_yields_is_logged(effect, said):
    router = Router()

    @router.on(ORDER, into=[OWN, SHARED])
    def changed(change: Change):
        yield effect

    said(local(App("shop", routers=[router])), *inserted(marked(), marked(more=1)))


def test_nothing_of_an_item_is_logged_of_an_external_handler(said, aws):
    router = Router()

    @router.on(ORDER, external=True)
    def send_mail(change: Change):
        raise MisbehavedError(change.new["text"])

    assert "'reason': ''" in said(local(App("shop", routers=[router])), *inserted(marked()))


def test_nothing_of_another_tenants_row_is_logged(said):
    router = Router()

    @router.view(Key("{shop}#ORDER#{order}", "METADATA"), into=Key("{shop}#SUM", "ROW"))
    def of_another(item):
        yield Row(shop=f"{item['text']}2", n=Count())

    app = App("shop", routers=[router], tenant="shop")
    assert "its source is of tenant ..." in said(local(app), *inserted(marked(f"{TEXT}#ORDER#1")))


@pytest.mark.parametrize("told", ["report", "park"])
def test_nothing_of_a_row_that_is_claimed_twice_is_logged(said, aws, told):
    router = Router()
    options = {"unique": True, "on_conflict": told}

    @router.index(ORDER, into=EMAIL, **options)
    def by_email(item):
        yield Row(email=item["text"], n=item["number"])

    items = marked(), marked(f"ORDER#{TEXT}2")
    function = local(App("shop", routers=[router]), QUIET._replace(park="s3://missing"))
    text = said(function, *inserted(*items))
    assert "claimed twice" in text or "The record cannot be parked" in text


def test_nothing_of_an_item_is_logged_that_cannot_be_parked(said, aws):
    app = shop(VIEWS["an error of its own"], VIEWS["a sum of text"], on_error="park")
    text = said(local(app, QUIET._replace(park="s3://missing")), *inserted(marked()))
    assert "The record cannot be parked" in text
    assert "MisbehavedError: .... The record cannot be parked" in text
    assert "HandlerError: Sum(...) is of type str" in text


def refusal(code, status=400, **more):
    response = {"Error": {"Code": code, "Message": f"The item {TEXT} with {NUMBER} is refused"}}
    return ClientError(response | {"ResponseMetadata": {"HTTPStatusCode": status}, **more}, "Operation")


def cancelled(code, **more):
    reasons = [{"Code": code, "Message": TEXT, **more}, *[{"Code": "None"}] * 2]  # of the guard and the two rows
    return refusal("TransactionCanceledException", CancellationReasons=reasons)


TROUBLE = {
    "validation": refusal("ValidationException"),
    "throttling": refusal("ThrottlingException"),
    "conflict": refusal("TransactionConflictException"),
    "forbidden to read": refusal("SomethingElse"),
    "server": refusal("InternalServerError", 500),
    "cancelled": cancelled("ValidationError"),
    "cancelled by a condition": cancelled("ConditionalCheckFailed", Item={"pk": {"S": TEXT}, "sk": {"S": TEXT}}),
    "cancelled by a conflict": cancelled("TransactionConflict"),
    "no reason": refusal("TransactionCanceledException"),
    "time-out": ReadTimeoutError(endpoint_url=f"https://{TEXT}", error=TEXT),
}


class Troubled:
    """A client of DynamoDB whose operations all raise, but for the first reads, of the manifest."""

    def __init__(self, error):
        self.error = error

    def batch_get_item(self, **arguments):
        (table,) = arguments["RequestItems"]
        keys = arguments["RequestItems"][table]["Keys"]
        if any("manifest" in str(key) for key in keys):
            return {"Responses": {}}
        raise self.error

    def put_item(self, **arguments):
        if "manifest" not in str(arguments["Item"]["pk"]):
            raise self.error

    def __getattr__(self, operation):
        def call(**arguments):
            raise self.error

        return call


@pytest.mark.parametrize("what", TROUBLE)
def test_nothing_of_what_the_store_says_of_an_item_is_logged(what, said, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    app = shop(lambda item: [Row(OWN, n=item["number"]), Row(SHARED, name=item["text"], n=Count())])
    text = said(Function(app, QUIET, client=Troubled(TROUBLE[what])), *inserted(marked()))
    assert "is redelivered" in text or "DynamoDB refused the call" in text


def test_nothing_of_what_libraries_send_is_logged_at_any_level(said, client, monkeypatch):
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "DEBUG")
    app = shop(lambda item: [Row(OWN, n=item["text"]), Row(SHARED, name=item["text"], n=Max(item["number"]))])
    function = Function(app, QUIET._replace(observe="lines"), client)
    text = said(function, *inserted(marked(), marked(f"ORDER#{TEXT}2")))
    assert "batch processed" in text
    rows = client.scan(TableName="main")["Items"]
    assert len([row for row in rows if TEXT in row["PK"]["S"]]) == 3


def test_what_ends_an_invocation_says_nothing_of_an_item_and_keeps_its_type_and_its_trace(said, monkeypatch):
    def broken(*arguments):
        raise KeyError(TEXT)

    monkeypatch.setattr("streamfold.lambda_entry.function.process_changes", broken)
    text = said(local(shop(lambda item: Row(OWN, n=1))), *inserted(marked()))
    assert "StreamfoldError: KeyError ended the invocation" in text
    assert "in broken" in text
