"""A queue that functions ring, in place of SQS, and applications whose posts and referents are long fan-outs."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from botocore.exceptions import ClientError

from streamfold import App, Count, Key, Lookup, Max, Router, Row, Sum
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.jobs.fan_outs import FanOuts, SegmentQueue
from streamfold.lambda_entry.queue import QueueFunction
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.feed_histories import BEGIN, FEED, FOLLOW, POST, applications
from tests.helpers.records import change, item

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/doorbell"
LINE, PRODUCT = Key("ORDER#{order_id}", "LINE"), Key("PRODUCT#{product_id}", "META")
QUEUED = Settings(observe="off", state_table="state", jobs=URL, tables={"main": "rows"})


class Messages:
    """A client of SQS that keeps what it is sent; ``refuses`` and ``fails`` make it take nothing."""

    def __init__(self):
        self.waiting, self.calls, self.sent = [], 0, 0
        self.refuses = self.fails = False

    def send_message_batch(self, **call):
        self.calls += 1
        assert call["QueueUrl"] == URL
        assert 1 <= len(call["Entries"]) <= 10
        if self.fails:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "SendMessageBatch")
        if self.refuses:
            return {"Failed": [{"Id": entry["Id"], "Code": "InternalError"} for entry in call["Entries"]]}
        for entry in call["Entries"]:
            self.sent += 1
            self.waiting.append(
                {"eventSource": "aws:sqs", "messageId": f"message-{self.sent}", "body": entry["MessageBody"]}
            )
        return {"Successful": [{"Id": entry["Id"]} for entry in call["Entries"]]}


class Clock:
    """Lambda's context, and a clock for the run."""

    def __init__(self, seconds=60.0):
        self.seconds = seconds

    def get_remaining_time_in_millis(self):
        return int(self.seconds * 1000)


def follow(reader):
    return FOLLOW.compose({"reader_id": reader, "author_id": "b"})


def post(number):
    at = datetime.fromtimestamp(BEGIN, UTC) + timedelta(seconds=number)
    return POST.compose({"author_id": "b", "at": at, "post_id": f"p{number}"})


def new_run(app, engine, **more):
    return Runtime(app, engine, Settings(), clock=lambda: BEGIN + 10, pause=lambda _: None, **more)


def opened_by_a_follow(posts):
    """The same, opened by a reader who follows an author of so many posts: older ones are only replaced."""
    app = applications(most=3)[0]
    engine = MemoryEngine(app.tables.values(), app.chains)
    run = new_run(app, engine)
    told = [change(None, item(*post(-100 * number), text="hello"), number + 1) for number in range(posts)]
    assert not process_changes(run, told).failures
    assert not process_changes(run, [change(None, item(*follow("r"), name="n"), 10_000)]).failures
    return app, engine, run


def opened(readers):
    """An application, an engine, and the run in which a post to so many readers was processed: its fan-out is open."""
    app = applications()[0]
    engine = MemoryEngine(app.tables.values(), app.chains)
    run = new_run(app, engine)
    edges = [change(None, item(*follow(f"r{number}"), name="n"), number + 1) for number in range(readers)]
    assert not process_changes(run, edges).failures
    told = change(None, item(*post(1), text="hello"), 10_000)
    assert not process_changes(run, [told]).failures
    return app, engine, run


def lines_of_a_product():
    """An application whose handlers each visit the lines of a product by a fan-out, if it has more than one."""
    router, lookup = Router(), {"product": Lookup(PRODUCT, optional=True)}

    @router.view(LINE, into=Key("CATEGORY#{category}", "SALES"), lookup=lookup, inline=1)
    def sales(line, product):
        category, price = (product["category"], product["price"]) if product else ("none", 0)
        return Row(category=category, units=Sum(line["quantity"]), dearest=Max(price), lines=Count())

    @router.index(LINE, into=Key("CATEGORY#{category}", "LINE#{order_id}"), lookup=lookup, inline=1)
    def lines_by_category(line, product):
        return Row(category=product["category"], quantity=line["quantity"]) if product else None

    @router.attributes(LINE, lookup=lookup, inline=1)
    def category_on_line(line, product):
        return Row(category=product["category"]) if product else None

    return App("social", routers=[router])


def opened_by_a_referent(lines):
    """The same, opened by a product of so many lines that changes. One of them is of another product by now, and its
    record is yet to come.
    """
    app = lines_of_a_product()
    engine = MemoryEngine(app.tables.values(), app.chains)
    run = new_run(app, engine)

    def put(old, new, number):
        made = change(old, new, number)
        engine.put_sources([(made.item, encode(new)["M"], made.version_text)])
        return made

    def line(number, product_id):
        return item(*LINE.compose({"order_id": f"{number}"}), product_id=product_id, quantity=2)

    product = item(*PRODUCT.compose({"product_id": "p"}), category="a", price=3)
    changes = [put(None, product, 1), *(put(None, line(number, "p"), number + 2) for number in range(lines))]
    changes.append(put(product, {**product, "category": "b"}, 10_000))
    for each in changes:
        assert not process_changes(run, [each]).failures
    put(line(0, "p"), line(0, "q"), 10_001)
    return app, engine, run


def queue_function(app, engine, client=None, **settings):
    """The function behind the queue, over an engine, with the client that it rings by."""
    function = QueueFunction(app, QUEUED._replace(**settings), client=object())
    function.engine = engine
    function.segment_queue = SegmentQueue(app.name, URL, function.warn, client or Messages())
    return function


def rows_of(engine):
    """The readers who have a row."""
    found = (decode({"M": dict(each)}) for each in engine.items(FEED.table))
    return sorted(row["PK"] for row in found if row["PK"].startswith("FEED#"))


@contextmanager
def time_for_one_page(clock, seconds_after=15.0):
    """After each page of a lane, only so many seconds are left."""
    stores = FanOuts._store

    def store(self, *arguments):
        found = stores(self, *arguments)
        clock.seconds = seconds_after
        return found

    FanOuts._store = store
    try:
        yield
    finally:
        FanOuts._store = stores


def body(queued, application="social"):
    return json.dumps({"application": application, "fan_out": queued[0], "lane": queued[1]})
