"""Numbered versions: a row for every number that the writer gave an item, and one that names the latest."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamfold import AUDIT, App, Delete, Key, Put, Router, Row, Table
from streamfold.batch.process import process_event
from streamfold.derivations.audit.numbered import ROW_BYTES_MAX, version_row
from streamfold.derivations.audit.options import Recorded
from streamfold.derivations.on.kind import ON, filter_of
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import DeclarationError, HandlerError, ImageError, KeyValueError, ManifestError
from streamfold.records.values import ITEM_BYTES_MAX, decode, encode, item_bytes
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import HandlerFails, Twin, Write, check
from tests.helpers.histories import EXPIRED, records_of
from tests.helpers.model import stored
from tests.helpers.numbered import DOCUMENT, HISTORIES, LATEST, REDACTING, VERSION, app_of, expected, numbered
from tests.helpers.records import VERSION_PREFIX, change, item, record

BORN = datetime(2026, 3, 1, 9, tzinfo=UTC)
KB = 1024


def keeper(app):
    return next(route for route in app.routes if route.name == "history_versions")


def kept(changed, app=None):
    """What is written for one change."""
    return list(keeper(app or app_of()).function(changed))


def document(revision=1, **attributes):
    return item("DOC#1", revision=revision, **attributes)


# What is kept


def test_every_number_has_a_row_with_the_item_as_it_was():
    twin = Twin(app_of())
    twin.put(DOCUMENT, document_id="1", revision=1, title="Draft")
    twin.put(DOCUMENT, document_id="1", revision=2, title="Plan")
    first, second = twin.rows(VERSION)
    assert first["image"] == {**DOCUMENT.key(document_id="1"), "revision": 1, "title": "Draft"}
    assert (first["SK"], first["event"], first["at"]) == ("v0001", "INSERT", "2026-03-01T09:00:01.000000Z")
    assert (second["SK"], second["event"], second["image"]["title"]) == ("v0002", "MODIFY", "Plan")


def test_a_row_bears_the_version_of_the_history_row_of_its_change():
    twin = Twin(app_of())
    twin.put(DOCUMENT, document_id="1", revision=1)
    assert [row["version"] for row in twin.rows(VERSION)] == [row["version"] for row in twin.rows(AUDIT)]


def test_an_item_is_put_back_as_its_row_says():
    twin = Twin(app_of())
    twin.put(DOCUMENT, document_id="1", revision=1, title="Draft", labels=["a"], size=Decimal("1.5"))
    before = twin.tables["main"].items()
    twin.put(DOCUMENT, document_id="1", revision=2)
    twin.tables["main"].put(twin.row(VERSION, document_id="1", revision=1)["image"])
    assert twin.tables["main"].items() == before


def test_of_two_changes_with_one_number_the_later_one_is_kept():
    twin = Twin(app_of())
    for title in ("a", "b"):
        twin.put(DOCUMENT, document_id="1", revision=1, title=title)
    (row,) = twin.rows(VERSION)
    assert row["image"]["title"] == "b"


def test_the_latest_is_named_with_its_key_and_is_gone_with_the_item():
    twin = Twin(app_of())
    twin.put(DOCUMENT, document_id="1", revision=1)
    twin.put(DOCUMENT, document_id="1", revision=2)
    latest = twin.row(LATEST, document_id="1")
    assert (latest["revision"], latest["at"]) == (2, "2026-03-01T09:00:02.000000Z")
    assert latest["key"] == VERSION.key(document_id="1", revision=2)
    twin.delete(DOCUMENT, document_id="1")
    assert (twin.rows(LATEST), len(twin.rows(VERSION))) == ([], 2)


def test_the_latest_is_that_of_the_newest_change_whatever_its_number():
    twin = Twin(app_of())
    twin.put(DOCUMENT, document_id="1", revision=5)
    twin.expire(DOCUMENT, document_id="1")
    twin.put(DOCUMENT, document_id="1", revision=1)
    assert twin.row(LATEST, document_id="1")["revision"] == 1
    assert [row["SK"] for row in twin.rows(VERSION)] == ["v0001", "v0005"]


def test_without_latest_nothing_names_one_and_a_removal_is_passed_over():
    app = app_of(latest=None)
    assert filter_of(keeper(app)).events == {"INSERT", "MODIFY"}
    twin = Twin(app)
    twin.put(DOCUMENT, document_id="1", revision=1)
    twin.delete(DOCUMENT, document_id="1")
    assert [row["SK"] for row in twin.rows(VERSION)] == ["v0001"]
    assert not any(row["SK"] == "latest" for row in twin.rows(Key("DOC#{document_id}", "{sort:rest}")))


def test_a_change_leads_to_puts_that_can_be_compared():
    at, version = {"at": BORN}, f"{VERSION_PREFIX}{7:040d}"
    row = {"event": "INSERT", **at, "version": version, "image": document(title="x")}
    latest = {"revision": 1, **at, "key": {"PK": "DOC#1", "SK": "v0001"}}
    written = kept(change(None, document(title="x"), 7))
    assert written == [Put(VERSION, revision=1, attributes=row), Put(LATEST, attributes=latest)]
    assert kept(change(document(), None, 8)) == [Delete(LATEST)]


# What is recorded


def recorded_row(of, **options):
    return version_row(Recorded(**options), of, VERSION)


def test_a_redacted_attribute_is_named_and_never_written():
    row = recorded_row(change(None, document(title="x", token="secret")), redact=frozenset(["token", "other"]))
    assert row["redacted"] == ["token"]
    assert row["image"] == document(title="x")
    assert "secret" not in repr(row)


def test_only_the_fields_that_are_asked_for_are_recorded_beside_the_key():
    fields = frozenset(["title", "token"])
    row = recorded_row(change(None, document(title="x", text="y", token="z")), fields=fields, redact={"token"})
    assert row["image"] == item("DOC#1", title="x")
    assert (row["fields"], row["redacted"]) == (["title", "token"], ["token"])


def test_a_row_says_who_made_the_change():
    assert recorded_row(change(None, document(by="ana")), actor="by", fields={"title"})["actor"] == "ana"
    assert recorded_row(change(None, document(by="x" * 2000)), actor="by")["left_out"] == ["actor"]


def test_attributes_of_the_framework_and_derived_ones_are_left_out():
    bearing = document(title="x", total=5, _sf_a={"shop/order_total": {"total"}}, _sf_v="7")
    assert recorded_row(change(None, bearing).without_derived())["image"] == document(title="x")
    put, _ = kept(change(document(), bearing))
    assert put.attributes["image"] == document(title="x")


def test_a_change_of_derived_attributes_alone_writes_nothing():
    before, after = (document(total=total, _sf_a={"shop/order_total": {"total"}}) for total in (4, 5))
    assert kept(change(before, after)) == []
    assert kept(change(document(), after)) == []
    assert kept(change(before, {**after, "title": "x"})) != []


def test_items_that_bear_derived_attributes_are_kept_without_them():
    router = Router()
    router.audit(DOCUMENT, versions=VERSION, latest=LATEST)

    @router.attributes(DOCUMENT)
    def size(item):
        yield Row(size=len(item["text"]))

    twin = Twin(App("documents", routers=[router]))
    twin.put(DOCUMENT, document_id="1", revision=1, text="x")
    twin.put(DOCUMENT, document_id="1", revision=2, text="xy")
    assert [row["image"] for row in twin.rows(VERSION)] == [document(1, text="x"), document(2, text="xy")]


def test_rows_expire_behind_their_change_and_the_latest_does_not():
    table = Table("shop", ttl="expires")
    keys = [Key(key.partition.text, key.sort.text, table=table) for key in (DOCUMENT, VERSION, LATEST)]
    app = app_of(keys[0], versions=keys[1], latest=keys[2], keep_days=30)
    row, latest = kept(change(None, document(expires=1), table=table), app)
    assert row.attributes["expires"] == int((BORN + timedelta(days=30)).timestamp())
    assert row.attributes["image"]["expires"] == 1
    assert "expires" not in latest.attributes


# Sizes


def test_a_value_that_does_not_fit_is_recorded_as_digest_and_size():
    full = document(text="x" * (390 * KB), note="y" * (5 * KB))
    row = recorded_row(change(None, full))
    assert row["image"] == document(note="y" * (5 * KB))
    assert (row["large"]["text"]["bytes"], len(row["large"]["text"]["sha256"])) == (390 * KB, 43)


def test_large_values_are_written_as_long_as_the_row_fits():
    full = document(text="x" * (300 * KB))
    assert recorded_row(change(None, full))["image"] == full


def test_a_value_that_is_nested_too_deep_for_a_row_is_recorded_as_its_digest():
    deep = ["x"]
    for _ in range(30):
        deep = [deep]
    inner, full = document(deep=deep[0], text="x" * (300 * KB)), document(deep=deep, text="x" * (300 * KB))
    assert recorded_row(change(None, inner))["image"] == inner
    row = recorded_row(change(None, {**full, "less": deep[0]}))
    assert (list(row["large"]), row["image"]["text"], row["image"]["less"]) == (["deep"], full["text"], deep[0])


@pytest.mark.slow
def test_an_item_of_too_many_attributes_leaves_them_out_and_says_so():
    full = document(**{f"a{number:05d}": "x" * 20 for number in range(14_900)})
    row = recorded_row(change(None, full))
    assert (row["image"], row["left_out"]) == (item("DOC#1"), ["image"])
    row = recorded_row(change(None, {**full, "by": "x" * 2000}), actor="by")
    assert (row["image"], row["left_out"]) == (item("DOC#1"), ["actor", "image"])


@given(st.lists(st.integers(1, 60 * KB), max_size=12), st.integers(0, 3000))
@settings(max_examples=40)
def test_every_row_of_an_item_that_dynamodb_takes_is_one_too(sizes, small):
    values = {f"a{number}": "x" * size for number, size in enumerate([*sizes, *[40] * small])}
    full = document(**values)
    assume(item_bytes(encode(full)["M"]) <= ITEM_BYTES_MAX)
    row = recorded_row(change(None, full))
    assert item_bytes(encode(row)["M"]) <= ROW_BYTES_MAX
    whole = row["image"].keys() | row.get("large", {}).keys() == full.keys()
    assert whole or row["left_out"] == ["image"]


# Keys


def test_several_numbers_make_one_key():
    app = app_of(versions=Key("DOC#{document_id}", "v{major:02d}.{minor:02d}"))
    row, latest = kept(change(None, item("DOC#1", major=2, minor=11)), app)
    assert row.values == {"major": 2, "minor": 11}
    assert latest.attributes["key"] == {"PK": "DOC#1", "SK": "v02.11"}
    assert {"major", "minor"} <= latest.attributes.keys()


def test_items_of_several_sources_have_rows_apart():
    note = Key("NOTE#{document_id}", "METADATA")
    app = app_of(DOCUMENT, note, versions=Key("VERSION#{document_id}", "{kind}#{revision:04d}"), latest=None)
    twin = Twin(app)
    twin.put(DOCUMENT, document_id="1", kind="doc", revision=1)
    twin.put(note, document_id="1", kind="note", revision=1)
    assert [row["SK"] for row in twin.rows(keeper(app).into[0])] == ["doc#0001", "note#0001"]
    with pytest.raises(HandlerFails, match="belongs to"):
        twin.put(note, document_id="1", kind="doc", revision=1)


def test_a_field_that_only_one_source_has_is_an_attribute_of_the_other():
    page = Key("DOC#{document_id}", "PAGE#{page}")
    app = app_of(DOCUMENT, page, versions=Key("VERSION#{document_id}", "{page}#{revision:04d}"), latest=None)
    (row,) = kept(change(None, item("DOC#1", "PAGE#7", revision=1)), app)
    assert row.values == {"revision": 1}
    (row,) = kept(change(None, document(page="cover")), app)
    assert row.values == {"page": "cover", "revision": 1}


def test_versions_may_have_a_table_whose_key_attribute_is_called_version():
    table = Table("versions", partition="document", sort="version")
    versions = Key("{document_id}", "{version:04d}", table=table)
    (row,) = kept(change(None, item("DOC#1", version=3)), app_of(versions=versions, latest=None))
    assert row.values == {"version": 3}
    assert "version" not in row.attributes
    twin = Twin(app_of(versions=versions, latest=None))
    twin.put(DOCUMENT, document_id="1", attributes={"version": 3})
    assert twin.row(versions, document_id="1", version=3)["image"] == item("DOC#1", version=3)


# What it costs


@pytest.mark.parametrize(("latest", "units"), [(LATEST, (6, 10)), (None, (4, 8))])
def test_a_version_costs_what_the_documents_say(latest, units):
    app = app_of(latest=latest)
    engine = CountingEngine(MemoryEngine(app.tables.values()))
    found = []
    for number, text in enumerate(("x", "x" * 2500), 1):
        engine.calls.clear()
        changed = [record(None, item(f"DOC#{number}", revision=1, text=text), number)]
        assert process_event(Runtime(app, engine, Settings()), changed).failures == []
        (call,) = engine.named("transact")
        found.append(call.write_units)
    assert tuple(found) == units


# What cannot be declared


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"versions": None},
            "has latest=Key('DOC#{document_id}', 'latest') without versions=, whose newest it names: add",
        ),
        ({"versions": "v"}, 'versions=Key("DOC#{document_id}", "v{revision:04d}").'),
        ({"latest": [LATEST]}, ']: expected one Key, latest=Key("DOC#{document_id}", "latest").'),
        ({"versions": Key("DOC#{document_id}", "v")}, "which has no field beyond those of Key('DOC#{document_id}', "),
        ({"versions": Key("DOC", "v{revision:04d}")}, "rows of several items would be one. Missing: {document_id}."),
        ({"versions": Key("DOC#{document_id:d}", "v{n:d}")}, "Missing: a field of the same type."),
        ({"redact": ["revision"]}, "whose 'revision' redact= names too: the key of a row would hold the value"),
        ({"keep_days": 3}, "has versions=Key('DOC#{document_id}', 'v{revision:04d}'), and has keep_days=3, but table"),
        ({"latest": Key("DOC", "latest")}, "has latest=Key('DOC', 'latest'), which does not hold every field of Key("),
        ({"latest": Key("DOC#{document_id}", "l{title}")}, "whose field 'title' is none of Key('DOC#"),
        ({"versions": Key("DOC#{document_id}", "v{at}")}, "and 'at' is two of them: number versions by an"),
        ({"versions": Key("DOC#{document_id}", "v{SK}")}, "and 'SK' is two of them: number versions by an"),
    ],
)
def test_keys_that_cannot_hold_the_rows_are_refused_where_they_are_declared(options, message):
    with pytest.raises(DeclarationError, match=rf"^audit at .*numbered.py:\d+ .*{re.escape(message)}"):
        app_of(**options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"versions": Key("DOC#{document_id}", "v")}, "raises with each edit, for example {revision:04d}."),
        ({"redact": ["revision"]}, "the key of a row would hold the value in clear. Leave one of them out."),
        (
            {"latest": Key("DOC#{document_id}", "l{title}")},
            "each item, which its key alone can name. Leave the field out.",
        ),
        (
            {"versions": Key("DOC#{document_id}", "v{at}")},
            "two of them: number versions by an attribute of another name.",
        ),
        ({"latest": Key("X#{kind}", "latest")}, "Missing: {document_id}."),
        ({"versions": None}, 'add versions=Key("DOC#{document_id}", "v{revision:04d}").'),
    ],
)
def test_a_refusal_ends_with_the_remedy(options, remedy):
    with pytest.raises(DeclarationError, match=re.escape(remedy) + "$"):
        app_of(**options)


def test_all_fields_that_a_key_lacks_are_named_and_all_names_that_are_taken():
    page = Key("DOC#{document_id}", "PAGE#{page:03d}")
    with pytest.raises(DeclarationError, match=r"Missing: {document_id}, {page:03d}\.$"):
        app_of(page, versions=Key("ALL", "{revision:d}"))
    with pytest.raises(
        DeclarationError, match="whose rows hold at, key, the table's own attributes and the number, and"
    ):
        app_of(versions=Key("DOC#{document_id}", "v{key}"))


def test_a_table_that_has_an_attribute_of_the_rows_itself_is_refused():
    table = Table("versions", sort="image")
    with pytest.raises(DeclarationError, match=r"of which 'image' is .*'versions' itself: .* own, versions=Key\("):
        app_of(versions=Key("{document_id}", "{revision:d}", table=table))


def test_an_audit_that_is_refused_declares_nothing():
    router = Router()
    with pytest.raises(DeclarationError):
        router.audit(DOCUMENT, versions=DOCUMENT)
    assert router.routes == []


def test_rows_that_would_be_read_as_items_are_refused():
    with pytest.raises(DeclarationError, match=r"reads .* which are rows derived by 'history_versions'"):
        app_of(versions=Key("DOC#{document_id}", "{revision}"), latest=None)


def test_a_name_that_another_handler_has_is_refused():
    router = Router()
    router.audit(DOCUMENT, versions=VERSION, name="history")
    router.audit(Key("NOTE#{note_id}", "METADATA"), name="history_versions")
    with pytest.raises(DeclarationError, match="Two handlers are named 'history_versions'"):
        App("documents", routers=[router])


def test_the_route_has_group_policy_and_place_of_its_audit():
    router = Router()
    router.audit(DOCUMENT, versions=VERSION, latest=LATEST, group="audits", on_error="park", name="history")
    audit, versions = router.routes
    assert (versions.name, versions.kind, versions.into) == ("history_versions", ON, (VERSION, LATEST))
    assert (versions.group, versions.policy, versions.declared_at) == (audit.group, audit.policy, audit.declared_at)
    assert keeper(app_of()).guard == "claim, row guard"


def test_the_latest_may_be_added_later_and_not_left_out_again():
    engine = MemoryEngine(app_of().tables.values())
    for options in ({"latest": None}, {}):
        process_event(Runtime(app_of(**options), engine, Settings()), [])
    with pytest.raises(ManifestError, match="Handler 'history_versions' changed its targets"):
        process_event(Runtime(app_of(latest=None), engine, Settings()), [])


# What a change cannot be kept for


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ({}, "by {revision:04d} of Key('DOC#{document_id}', 'v{revision:04d}'), but the item has no"),
        ({"revision": "1"}, "Value '1' cannot be used for {revision:04d} in template 'v{revision:04d}': it is not a"),
        ({"revision": Decimal("1.5")}, "Value Decimal('1.5') cannot be used for {revision:04d} in template"),
        ({"revision": -1}, "it is negative, and padded text would not sort as its number. Let the writer give"),
        ({"revision": 10_000}, "it has more than 4 digits, and padded text would not sort as its number. Let"),
        ({"revision": None}, "Value None cannot be used for {revision:04d}"),
        ({"revision": True}, "Value True cannot be used for {revision:04d}"),
    ],
)
def test_an_item_without_a_number_that_fits_is_refused_with_the_remedy(number, message):
    with pytest.raises(HandlerError, match=re.escape(message)) as caught:
        kept(change(None, item("DOC#1", **number)))
    assert str(caught.value).startswith("Audit 'history' ")
    remedies = (" a value that Key('DOC#{document_id}', 'v{revision:04d}') takes.", " without it hold up no others.")
    assert str(caught.value).endswith(remedies)
    assert not isinstance(caught.value, KeyValueError)


def test_a_change_without_a_number_fails_alone_and_is_named():
    app = app_of()
    engine = MemoryEngine(app.tables.values())
    failures = process_event(
        Runtime(app, engine, Settings()), [record(None, item("DOC#1"), 1), record(None, item("DOC#2", revision=1), 2)]
    ).failures
    assert [(failure.sequence, failure.handler) for failure in failures] == [("1", "history_versions")]
    rows = stored(app, engine)
    assert ("main", "DOC#2", "v0001") in rows
    assert sum(key[1].startswith("AUDIT#") for key in rows) == 2


@pytest.mark.parametrize("view", ["KEYS_ONLY", "OLD_IMAGE"])
def test_a_stream_without_new_images_is_refused_with_the_remedy(view):
    with pytest.raises(ImageError, match=f"view type is {view}. Switch the stream to NEW_AND_OLD_IMAGES"):
        kept(change(document(), document(2), view=view))
    table = Table("shop", view=view)
    keys = [Key(key.partition.text, key.sort.text, table=table) for key in (DOCUMENT, VERSION)]
    with pytest.raises(DeclarationError, match=f"which view type {view} does not carry. Switch the stream"):
        app_of(keys[0], versions=keys[1], latest=None)


# Every history


def in_any_order(records, random):
    """The records in batches, each of them at least once, in no order at all."""
    left = [*records, *(each for each in records if random.random() < 0.4)]
    random.shuffle(left)
    while left:
        size = random.choice((1, 2, 5, 20))
        yield left[:size]
        left = left[size:]


def check_any_order(history, random):
    records = records_of(history)
    engine = MemoryEngine(REDACTING.tables.values())
    for batch in in_any_order(records, random):
        assert process_event(Runtime(REDACTING, engine, Settings()), batch).failures == []
    assert numbered(REDACTING, engine) == expected(records)


every_history = given(HISTORIES, st.randoms(use_true_random=False))


@pytest.mark.slow
@every_history
@settings(max_examples=40)
def test_records_in_any_order_lead_to_the_rows_of_the_model(history, random):
    check_any_order(history, random)


@pytest.mark.nightly
@every_history
@settings(max_examples=2000)
def test_records_in_any_order_lead_to_the_rows_of_the_model_in_many_histories(history, random):
    check_any_order(history, random)


@pytest.mark.slow
@given(HISTORIES.filter(bool), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_a_history_of_faults_leads_to_the_declared_rows(history, random):
    writes = [
        Write(DOCUMENT, DOCUMENT.match(item(*key)), None if put in (None, EXPIRED) else put, expired=put is EXPIRED)
        for key, put in history
    ]
    check(REDACTING, writes=writes, histories=1, seed=random.randrange(2**32), processes=0)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_versions_do_not_diverge_whatever_goes_wrong(source):
    table = Table("shop", ttl="expires")
    keys = [Key(key.partition.text, key.sort.text, table=table) for key in (DOCUMENT, VERSION, LATEST)]
    app = app_of(keys[0], versions=keys[1], latest=keys[2], keep_days=7, fields=["title", "email"], redact=["email"])
    items = [{"revision": number, "title": "x" * number, "email": "a"} for number in (1, 2, 3)]
    proof = check(app, {keys[0]: items}, histories=25, source=source)
    assert proof.faults.total() > 40


def test_versions_of_records_without_a_time_have_none():
    raw = record(None, {**DOCUMENT.key(document_id="1"), "revision": 1}, 1)
    del raw["dynamodb"]["ApproximateCreationDateTime"]
    app = app_of()
    engine = MemoryEngine(app)
    assert app.process([raw], engine=engine) == []
    rows = [decode({"M": each}) for each in engine.items(app.tables["main"])]
    assert len(rows) == 3
    assert not any("at" in row for row in rows)
