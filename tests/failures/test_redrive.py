"""Redrives: late, shuffled, twice, and beside the live stream; what each outcome means, and what refuses."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import Add, App, Count, Delete, Key, Put, Router, Row, Sum, Table, Version
from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineError, EngineUnavailable, ManifestError
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.failures.stream_range import Fetched
from streamfold.parking import open_parking
from streamfold.read import archived
from streamfold.records.envelope import Origins
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from tests.helpers import everything
from tests.helpers.failures import parked_document, queue_message, s3_object
from tests.helpers.histories import records_of, writes
from tests.helpers.late_redrive import LateRedrive
from tests.helpers.model import model, stored
from tests.helpers.records import LABEL, item

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
CARD = Key("CARD#{order_id}", "CARD")
SEEN = Key("SEEN#{order_id}", "SEEN")
CHANGES = Key("CHANGES", "TOTAL")
ITEM = ("main", "ORDER#1", "METADATA")


def make_app(mails):
    """A view, an index, an audit, and ``on`` handlers of orders. What is worth 13 none of them takes."""
    router = Router()
    router.audit(ORDER, name="audit")

    def lucky(item):
        if item.get("price") == 13:
            raise LookupError("no price 13")

    @router.view(ORDER, into=TOTAL, on_error="park")
    def total(item):
        lucky(item)
        yield Row(group=item["group"], total=Sum(item["price"]), orders=Count())

    @router.index(ORDER, into=CARD)
    def card(item):
        yield Row(price=item["price"])

    @router.on(ORDER, into=CHANGES, on_error="park")
    def changes(change):
        lucky(change.new)
        yield Add(changes=1)

    @router.on(ORDER, into=SEEN, events=["INSERT", "MODIFY"])
    def seen(change):
        if change.new["price"] == 0:
            yield Delete()
        else:
            yield Put(price=change.new["price"])

    @router.on(ORDER, external=True, group="mail")
    def mail(change, order_id):
        mails.append(order_id)

    return App("shop", routers=[router], retired=["given_up"])


class Shop:
    """An application on a store that holds its sources, and redrives of what it did not get."""

    def __init__(self, source):
        self.mails = []
        self.app = make_app(self.mails)
        self.engine = EmbeddedEngine(self.app.tables.values())
        self.source = source
        self.run = Runtime(self.app, self.engine, Settings(), pause=lambda seconds: None)
        self.origins = Origins(self.app.source_tables, Settings())
        self.stream = []

    def put(self, partition="ORDER#1", **attributes):
        """The record of a put; the source item is there from now on."""
        record = self.source.put(partition, **attributes)
        change = self.origins.change(record)
        self.engine.put_sources([(change.item, change.new.raw, change.version_text)])
        return record

    def deliver(self, *records):
        changes = [self.origins.change(record) for record in records]
        return process_changes(self.run, changes).failures

    def redrive(self, document, *, dry_run=False, engine=None, origins=None, **run):
        """What became of each handler: ``{handler: (what, written, removed)}``."""
        return {
            each.handler: each[1:2] + each[5:7] for each in self.reported(document, dry_run, engine, origins, **run)
        }

    def reported(self, document, dry_run=False, engine=None, origins=None, **run):  # noqa: FBT002
        own = self.run.on(engine or self.engine, application=self.app, **run)
        redrive = Redrive(own, origins or self.origins, self.fetch, dry_run, self.engine.put_sources)
        return list(redrive.process(Waiting("here", document)))

    def why(self, document, **options):
        (reported,) = self.reported(document, **options)
        return reported.what, reported.why

    def fetch(self, part):
        found = [record for record in self.stream if record["dynamodb"]["SequenceNumber"] in part]
        return Fetched(found, None if len(found) == 2 else "some are gone")

    def rows(self):
        rows = stored(self.app, self.engine)
        return {key[1]: row for key, row in rows.items() if not key[1].startswith("AUDIT#")}

    def guards(self):
        """The ledger and the claims."""
        return [item for item in self.engine.state_items() if not item["pk"]["S"].startswith("manifest#")]

    def audits(self):
        return len([key for key in stored(self.app, self.engine) if key[1].startswith("AUDIT#")])


@pytest.fixture
def shop(source):
    return Shop(source)


def lambda_document(*records):
    return json.loads(s3_object(*records))


def test_a_record_that_lambda_gave_up_is_made_good_for_all_handlers(shop):
    record = shop.put(group="x", price=5)

    outcomes = shop.redrive(lambda_document(record), outside=True)

    assert outcomes == {
        "total": ("applied", 1, 0),
        "card": ("applied", 1, 0),
        "changes": ("applied", 1, 0),
        "seen": ("applied", 1, 0),
        "mail": ("applied", 0, 0),
        "audit": ("applied", 1, 0),
    }
    assert shop.rows() == {
        "TOTAL#x": {"total": 5, "orders": 1},
        "CARD#1": {"price": 5},
        "CHANGES": {"changes": 1},
        "SEEN#1": {"price": 5},
    }
    assert (shop.mails, shop.audits()) == (["1"], 1)


def test_a_parked_record_is_made_good_for_its_handler_alone(shop):
    record = shop.put(group="x", price=5)
    assert shop.redrive(parked_document(record, "total")) == {"total": ("applied", 1, 0)}
    assert shop.rows() == {"TOTAL#x": {"total": 5, "orders": 1}}


def test_an_old_record_leads_a_view_to_what_the_item_is_now(shop):
    old = shop.put(group="x", price=5)
    shop.put(group="y", price=7)
    shop.redrive(parked_document(old, "total"))
    assert shop.rows() == {"TOTAL#y": {"total": 7, "orders": 1}}


def test_a_stale_record_changes_no_row_of_a_view(shop):
    old, new = shop.put(group="x", price=5), shop.put(group="y", price=7)
    shop.deliver(new)
    before = shop.rows()
    assert shop.redrive(parked_document(old, "total")) == {"total": ("stale", 0, 0)}
    assert shop.rows() == before


def test_a_redrive_of_which_nothing_comes_still_raises_the_version(shop):
    record = shop.put(group="x", price=13)
    shop.put(group="x", price=13, note="still")
    shop.engine.put_sources([(ITEM, None, "99")])
    assert shop.redrive(parked_document(record, "total")) == {"total": ("unchanged", 0, 0)}
    assert shop.redrive(parked_document(record, "total")) == {"total": ("stale", 0, 0)}


def test_a_change_that_took_effect_is_known_and_counted_once(shop):
    record = shop.put(group="x", price=5)
    shop.deliver(record)
    assert shop.redrive(parked_document(record, "changes")) == {"changes": ("known", 0, 0)}
    assert shop.rows()["CHANGES"] == {"changes": 1}


def test_an_old_change_does_not_overwrite_the_row_of_a_newer_one(shop):
    old, new = shop.put(group="x", price=5), shop.put(group="x", price=7)
    shop.deliver(new)
    assert shop.redrive(parked_document(old, "seen")) == {"seen": ("stale", 0, 0)}
    assert shop.rows()["SEEN#1"] == {"price": 7}
    assert shop.redrive(parked_document(old, "seen")) == {"seen": ("known", 0, 0)}


def test_a_late_copy_overwrites_no_newer_one(source):
    router = Router()
    router.copy(ORDER, to=Table("copies"), name="copy")
    app = App("shop", routers=[router])
    engine, origins = EmbeddedEngine(app.tables.values()), Origins(app.source_tables, Settings())
    run = Runtime(app, engine, Settings())
    old, new = source.put("ORDER#1", price=5), source.put("ORDER#1", price=7)
    redrive = Redrive(run, origins, fetch=None, put_sources=engine.put_sources)
    reported = [each for record in (new, old) for each in redrive.process(Waiting("here", lambda_document(record)))]
    assert [(each.what, each.written) for each in reported] == [("applied", 1), ("stale", 0)]
    assert [row["price"] for row in engine.items(app.tables["copies"])] == [{"N": "7"}]


def test_a_parent_that_is_there_again_keeps_its_children(source):
    router = Router()
    router.cascade(ORDER, children=[Key("ORDER#{order_id}", "ITEM#{sku}")], name="cascade")
    app = App("shop", routers=[router])
    engine, origins = EmbeddedEngine(app.tables.values()), Origins(app.source_tables, Settings())
    written = [source.put("ORDER#1"), source.put("ORDER#1", "ITEM#a"), source.remove("ORDER#1"), source.put("ORDER#1")]
    for change in map(origins.change, written):
        engine.put_sources([(change.item, change.new.raw or None, change.version_text)])
    redrive = Redrive(Runtime(app, engine, Settings()), origins, fetch=None, put_sources=engine.put_sources)
    (reported,) = redrive.process(Waiting("here", lambda_document(written[2])))
    assert (reported.what, reported.why) == ("stale", "The parent exists again: its children are kept.")
    assert len(list(engine.items(app.tables["main"]))) == 2


def test_a_late_removal_takes_children_along_and_is_archived_once(source, tmp_path):
    router = Router()
    router.cascade(ORDER, children=[Key("ORDER#{order_id}", "LINE#{n}")], name="cascade")
    router.archive(ORDER, to=f"file:{tmp_path}", name="archive")
    app = App("shop", routers=[router])
    engine = EmbeddedEngine(app.tables.values())
    run = Runtime(app, engine, Settings())
    engine.put_sources(
        [(("main", "ORDER#1", f"LINE#{n}"), encode(item("ORDER#1", f"LINE#{n}"))["M"], "v1") for n in "ab"]
    )
    source.put("ORDER#1")
    document = lambda_document(source.remove("ORDER#1"))
    redrive = Redrive(run, Origins(app.source_tables, Settings()), fetch=None, put_sources=None)
    reported = [(each.handler, each.what) for _ in range(2) for each in redrive.process(Waiting("here", document))]
    assert reported == [("cascade", "applied"), ("archive", "applied"), ("cascade", "stale"), ("archive", "applied")]
    assert list(engine.items(app.tables["main"])) == []
    assert [kept.item["PK"] for kept in archived(f"file:{tmp_path}", "archive")] == ["ORDER#1"]


def test_a_batch_of_kinesis_is_made_good_and_its_parked_record_is_known_by_what_it_tells(shop):
    record = KinesisTwin().append(shop.put(group="x", price=5))
    kinesis = {"origins": Origins(shop.app.source_tables, Settings())}
    version = kinesis["origins"].change(record).identity_text
    document = {"KinesisBatchInfo": {}, "payload": json.dumps({"Records": [record]})}
    assert shop.redrive(document, **kinesis)["changes"] == ("applied", 1, 0)
    parked = {**parked_document(shop.source.put("ORDER#2"), "changes"), "version": version, "record": record}
    assert shop.redrive(parked, **kinesis) == {"changes": ("known", 0, 0)}
    assert shop.redrive(parked, dry_run=True, **kinesis) == {"changes": ("known", 0, 0)}


def test_an_audit_row_is_written_once_and_known_then(shop):
    document = parked_document(shop.put(group="x", price=5), "audit")
    assert shop.redrive(document) == {"audit": ("applied", 1, 0)}
    assert shop.redrive(document) == {"audit": ("known", 0, 0)}
    assert shop.audits() == 1


@pytest.mark.parametrize("handler", ["total", "changes"])
def test_a_record_that_fails_again_stays_where_it_is(shop, handler, tmp_path):
    record = shop.put(group="x", price=13)
    place = tmp_path / "parked.jsonl"
    (reported,) = shop.reported(parked_document(record, handler), parking=open_parking(str(place)))
    assert (reported.what, reported.why) == ("failed", "LookupError: no price 13")
    assert reported.is_leftover
    assert not place.exists()


def test_a_handler_that_does_not_take_the_change_is_told(shop):
    shop.put(group="x", price=5)
    removal = shop.source.remove("ORDER#1")
    assert shop.why(parked_document(removal, "seen")) == ("unwanted", "The handler does not take this change.")


def test_an_item_that_no_handler_reads_is_told(shop):
    record = shop.source.put("OTHER#1")
    assert shop.why(lambda_document(record)) == ("unwanted", "No handler reads the item.")
    assert shop.why(parked_document(record, "total")) == ("unwanted", "The handler reads no such item.")


@pytest.mark.parametrize(
    ("handler", "settings", "why"),
    [
        ("mail", {}, "The handler is external: --external calls it."),
        ("total", {"handlers_off": ("total",)}, "The handler is switched off, STREAMFOLD_HANDLERS_OFF."),
        ("total", {"group": "mail"}, "The handler is of group 'main', and STREAMFOLD_GROUP is 'mail'."),
    ],
)
def test_a_handler_that_is_not_run_is_told_and_left_over(shop, handler, settings, why):
    record = shop.put(group="x", price=5)
    document = parked_document(record, handler)
    assert shop.why(document, settings=Settings(**settings)) == ("skipped", why)
    assert (shop.mails, shop.rows()) == ([], {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"handler": "totals"}, "The parked record names 'totals', which is no handler of the application: "),
        ({"handler": "given_up"}, "Handler 'given_up' is retired: its records are not processed any more."),
        (
            {"application": "crm"},
            "It was parked by application 'crm', and this one is 'shop': name the other with --app.",
        ),
        ({"version": "1"}, "It was parked as '1': expected EPOCH/LABEL/SEQUENCE."),
        ({"version": None}, "A parked record is damaged: expected 'version' to be text."),
        ({"version": Version.of(0, LABEL, 1).text}, f"It was parked as 00/{LABEL}/"),
        ({"record": {}}, "A record has no 'dynamodb' object"),
        ({"parked": 2}, "A parked record has the format 2"),
    ],
)
def test_a_parked_record_that_does_not_fit_is_bad_and_says_why(shop, change, why):
    document = {**parked_document(shop.put(group="x", price=5), "total"), **change}
    what, said = shop.why(document)
    assert what == "bad"
    assert said.startswith(why)
    assert shop.rows() == {}


def test_a_record_of_another_table_is_bad(shop):
    shop.origins.change(shop.put(group="x", price=5))
    shop.source.more = {"table": "invoices"}
    other = shop.source.put("ORDER#2", group="x", price=5)
    for document in (lambda_document(other), json.loads(queue_message(other)), parked_document(other, "total")):
        what, why = shop.why(document)
        assert (what, why.partition(",")[0]) == ("bad", "A record is of table 'invoices'")


def test_a_record_that_was_parked_in_an_older_epoch_is_the_same_change(shop):
    record = shop.put(group="x", price=5)
    shop.deliver(record)
    newer = Settings(epoch=1)
    outcomes = shop.redrive(
        parked_document(record, "changes"), settings=newer, origins=Origins(shop.app.source_tables, newer)
    )
    assert outcomes == {"changes": ("known", 0, 0)}


def test_numbers_of_records_are_read_from_the_stream_and_what_is_gone_is_told(shop):
    shop.stream = [shop.put(group="x", price=5), shop.put("ORDER#2", group="x", price=6)]
    document = json.loads(queue_message(*shop.stream))
    assert [each.what for each in shop.reported(document) if each.handler == "total"] == ["applied", "applied"]
    shop.stream.pop(0)
    gone, *others = shop.reported(document)
    assert (gone.what, gone.why, gone.is_leftover) == ("gone", "some are gone", True)
    assert [each.what for each in others if each.handler == "total"] == ["stale"]


def test_what_is_no_document_is_bad(shop):
    (reported,) = Redrive(shop.run, shop.origins, shop.fetch).process(Waiting("here", None, "torn"))
    assert (reported.location, reported.what, reported.why) == ("here", "bad", "torn")


def test_dry_run_says_what_it_would_do_and_does_nothing(shop):
    record = shop.put(group="x", price=5)
    document = lambda_document(record)
    said = shop.redrive(document, dry_run=True, outside=True)
    assert (shop.rows(), shop.audits(), shop.mails, list(shop.engine.state_items())) == ({}, 0, [], [])
    assert shop.redrive(document, outside=True) == said
    again = {name: what for name, (what, *_) in shop.redrive(document, dry_run=True).items()}
    assert again["total"] == "stale"
    assert again["changes"] == "known"


def test_dry_run_says_what_would_fail(shop):
    record = shop.put(group="x", price=13)
    reported = {each.handler: (each.what, each.why) for each in shop.reported(lambda_document(record), dry_run=True)}
    assert reported["total"] == reported["changes"] == ("failed", "LookupError: no price 13")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_state_without_sources_refuses_and_nothing_changes(shop, dry_run):
    record = shop.source.put("ORDER#1", group="x", price=5)
    shop.deliver(record)
    rows, guards = shop.rows(), shop.guards()
    with pytest.raises(EngineError, match="holds no source items of table 'main'"):
        shop.reported(lambda_document(shop.source.put("ORDER#1", group="y", price=7)), dry_run)
    assert (shop.rows(), shop.guards()) == (rows, guards)


class Denied:
    """A store whose source tables may not be read."""

    def __init__(self, engine):
        self.engine = engine

    def read_source(self, item):
        raise EngineError("Source items may not be read.")

    def __getattr__(self, name):
        return getattr(self.engine, name)


def test_a_source_table_that_may_not_be_read_stops_before_any_handler_ran(shop):
    record = shop.put(group="x", price=5)
    with pytest.raises(EngineError, match="may not be read"):
        shop.redrive(lambda_document(record), engine=Denied(shop.engine))
    assert (shop.rows(), shop.audits()) == ({}, 0)


def test_handlers_that_need_no_source_are_redriven_without_one(shop):
    record = shop.source.put("ORDER#1", group="x", price=5)
    assert shop.redrive(parked_document(record, "changes"), engine=Denied(shop.engine)) == {
        "changes": ("applied", 1, 0)
    }


def test_an_application_that_does_not_fit_the_state_is_refused(shop):
    record = shop.put(group="x", price=5)
    shop.deliver(record)
    shop.app = App("shop", routers=[Router()])
    with pytest.raises(ManifestError, match="is known to the state"):
        shop.reported(lambda_document(record), dry_run=True)


def test_a_store_that_does_not_answer_leaves_the_record_over(shop):
    record = shop.put(group="x", price=5)
    shop.deliver(shop.put("ORDER#2", group="x", price=1))

    class Silent(Denied):
        def transact(self, writes, expires_at):
            raise EngineUnavailable("no answer")

        def read_source(self, item):
            return self.engine.read_source(item)

    outcomes = {
        each.handler: (each.what, each.why)
        for each in shop.reported(lambda_document(record), engine=Silent(shop.engine))
    }
    assert outcomes["total"] == outcomes["changes"] == ("failed", "EngineUnavailable: no answer")


def parked_chain_record(app, engine):
    """The record of a derived row, which its reader did not take, as it is parked by a local state."""
    record = engine.pending(100)[0].record
    sequence = record["dynamodb"]["SequenceNumber"]
    version = Version.of(0, "embedded", sequence).text
    return parked_document(record, "bands", application=app.name, version=version)


@pytest.fixture
def chained():
    app = everything.app
    engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)
    origins = Origins(app.source_tables, Settings(tables={"main": "shop-prod"}))
    records = records_of([(("ORDER#1", "ITEM#a"), {"price": 60, "quantity": 3, "day": "2026-03-01", "tags": []})])
    records[0]["dynamodb"]["NewImage"]["customer"] = {"S": "ana"}
    change = Origins(app.source_tables, Settings()).change(records[0])
    process_changes(Runtime(app, engine, Settings()), [change])
    return app, engine, origins


def test_a_record_of_a_derived_row_is_redriven_in_the_state_that_it_comes_from(chained):
    app, engine, origins = chained
    redrive = Redrive(Runtime(app, engine, Settings()), origins, fetch=None, put_sources=engine.put_sources)
    (reported,) = redrive.process(Waiting("here", parked_chain_record(app, engine)))
    assert (reported.what, reported.written) == ("applied", 1)
    assert stored(app, engine)["main", "BAND#high", "TOTAL"] == {"orders": 1, "total": 180}


def test_a_record_of_a_derived_row_is_bad_on_another_store(chained):
    app, engine, origins = chained

    class Elsewhere:
        is_local = False

        def read_state(self, keys, *, consistent=False):
            return {}

        def swap_state(self, key, attributes, revision):
            return True

    redrive = Redrive(Runtime(app, Elsewhere(), Settings()), origins, fetch=None)
    (reported,) = redrive.process(Waiting("here", parked_chain_record(app, engine)))
    assert reported.why == "It comes from a local state's own stream: redrive it there, with --state FILE."


def test_a_derived_record_of_the_real_stream_is_not_delivered_to_a_local_state(chained, source):
    app, engine, _ = chained
    row = source.put("ORDER#1", "TOTAL", total=180)
    origins = Origins(app.source_tables, Settings())
    (reported,) = Redrive(Runtime(app, engine, Settings()), origins, fetch=None).process(
        Waiting("here", lambda_document(row))
    )
    assert (reported.what, reported.why) == (
        "unwanted",
        "It is of a declared target: a local state derives its rows again.",
    )


def check_late_redrive(history, random):
    late, records = LateRedrive(random), records_of(history)
    late.process(records)
    rows = stored(late.app, late.engine)
    assert rows == model(late.app, records)
    late.redrive_some(0.7)
    assert stored(late.app, late.engine) == rows


late_redrive = given(history=writes(), random=st.randoms(use_true_random=False))


@late_redrive
@settings(max_examples=12)
def test_records_that_are_redriven_late_shuffled_and_twice_give_the_rows_of_the_model(history, random):
    check_late_redrive(history, random)


@pytest.mark.ci
@late_redrive
@settings(max_examples=100)
def test_records_that_are_redriven_late_give_the_rows_of_the_model_in_a_hundred_histories(history, random):
    check_late_redrive(history, random)


@pytest.mark.nightly
@late_redrive
@settings(max_examples=3000)
def test_records_that_are_redriven_late_give_the_rows_of_the_model_in_many_histories(history, random):
    check_late_redrive(history, random)
