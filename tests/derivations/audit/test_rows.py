"""The history row of a change."""

from datetime import UTC, datetime
from decimal import Decimal
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamfold import App, Key, Router, Table
from streamfold.derivations.audit import rows
from streamfold.derivations.audit.puts import audit_row
from streamfold.engines import MemoryEngine
from streamfold.errors import HandlerError, ImageError, RecordError
from streamfold.keys.table import MAIN
from streamfold.records.change import Change, Origin
from streamfold.records.values import CANONICAL, ITEM_BYTES_MAX, decode, encode, item_bytes, number_text
from streamfold.routes.checks import checked_routes
from streamfold.testing import check
from tests.helpers.records import VERSION_PREFIX, change, item, record
from tests.helpers.small_handlers import ORDER
from tests.helpers.source import Source

PAID = change(item("ORDER#1", status="new"), item("ORDER#1", status="paid"), 7)
VERSION = f"{VERSION_PREFIX}{7:040d}"


def history(of, key=None, **options):
    router = Router()
    router.audit(ORDER, **options)
    return audit_row(checked_routes(router.routes)[0], of, {"order_id": "1"}, key)


def test_an_audit_row_says_what_changed_from_what_to_what_and_when():
    row = history(PAID)
    assert row.key == ("main", "AUDIT#ORDER#1|METADATA", VERSION)
    assert row.attributes["changes"] == {"status": {"old": "new", "new": "paid"}}
    assert ("MODIFY", datetime(2026, 3, 1, 9, tzinfo=UTC)) == (row.attributes["event"], row.attributes["at"])


def test_an_audit_row_of_a_record_without_a_time_has_none_and_does_not_expire():
    untimed = record(None, item("ORDER#1"), 7)
    del untimed["dynamodb"]["ApproximateCreationDateTime"]
    table, router = Table("main", ttl="expires"), Router()
    router.audit(Key("ORDER#{order_id}", "METADATA", table=table), keep_days=30)
    (route,) = checked_routes(router.routes)
    timed, own = (
        audit_row(route, Change(raw, Origin(table, VERSION_PREFIX)), {"order_id": "1"})
        for raw in (record(None, item("ORDER#1"), 7), untimed)
    )
    assert timed.key == own.key
    assert {
        name: timed.attributes[name] for name in timed.attributes if name not in ("at", "expires")
    } == own.attributes
    assert "expires" in timed.attributes


def test_an_audit_row_is_a_function_of_the_change_alone():
    assert history(PAID) == history(PAID)


def test_an_audit_row_of_an_item_that_came_or_went_has_one_side():
    assert history(change(None, item("ORDER#1", status="new"))).attributes["changes"] == {"status": {"new": "new"}}
    assert history(change(item("ORDER#1", status="new"), None)).attributes["changes"] == {"status": {"old": "new"}}


def test_a_redacted_attribute_s_change_is_noted_without_its_values():
    assert history(PAID, redact=["status"]).attributes["changes"] == {"status": {"redacted": ["old", "new"]}}


def test_a_row_that_was_redacted_is_not_rewritten_by_a_process_of_older_code():
    def app(redact):
        router = Router()
        router.audit(ORDER, redact=redact)
        return App("shop", routers=[router])

    older, newer, source = app([]), app(["email"]), Source()
    engine, record = MemoryEngine(older.tables.values()), source.put("ORDER#1", email="ada@example.com")
    for code in (newer, older):
        assert code.process({"Records": [record]}, engine=engine) == []
    (row,) = engine.rows.values()
    assert decode(row["changes"]) == {"email": {"redacted": ["new"]}}


def test_a_redacted_attribute_that_came_or_went_has_one_side():
    came = change(item("ORDER#1"), item("ORDER#1", email="a@example.com"))
    assert history(came, redact=["email"]).attributes["changes"] == {"email": {"redacted": ["new"]}}


def test_an_attribute_that_no_item_of_dynamodb_has_is_named():
    broken = change(None, item("ORDER#1", tags={"a"}))
    broken.record["dynamodb"]["NewImage"]["tags"] = {"SS": []}
    with pytest.raises(HandlerError, match=r"Attribute 'tags': Set set\(\) cannot be stored"):
        history(broken)


def test_a_row_holds_what_its_change_left_alone():
    amended = change(item("ORDER#1", n=1, note="x", email="a"), item("ORDER#1", n=2, note="x", email="a"))
    row = history(amended, redact=["email"])
    assert row.attributes["unchanged"] == {"note": {"value": "x"}, "email": {"redacted": ["value"]}}
    assert "unchanged" not in history(amended, unchanged=False).attributes
    assert "unchanged" not in history(change(None, item("ORDER#1", n=1))).attributes


def test_only_the_fields_that_are_asked_for_are_recorded_and_the_row_names_them():
    amended = change(item("ORDER#1", a=1, b=1, c=1, d=1), item("ORDER#1", a=2, b=2, c=1, d=1))
    row = history(amended, fields=["c", "a", "x"]).attributes
    assert (row["changes"], row["unchanged"]) == ({"a": {"old": 1, "new": 2}}, {"c": {"value": 1}})
    assert row["fields"] == ["a", "c", "x"]
    assert "fields" not in history(amended).attributes


def test_a_change_of_no_recorded_field_has_a_row_too():
    assert history(PAID, fields=["total"]).attributes["changes"] == {}


def test_attributes_stand_in_the_order_of_their_names():
    names = ["zeta", "alpha", "mu", "beta", "omega"]
    amended = change(item("ORDER#1", **dict.fromkeys(names, 1)), item("ORDER#1", **dict.fromkeys(names, 2)))
    assert list(history(amended).attributes["changes"]) == sorted(names)
    assert history(amended, fields=names).attributes["fields"] == sorted(names)


def test_the_actor_is_who_the_new_image_says_it_was():
    amended = change(item("ORDER#1", by="ana"), item("ORDER#1", by="bo"))
    assert history(amended, actor="by").attributes["actor"] == "bo"
    assert history(amended, actor="by", fields=["total"]).attributes["actor"] == "bo"
    assert "actor" not in history(amended).attributes


def test_nobody_is_said_to_have_removed_an_item():
    assert "actor" not in history(change(item("ORDER#1", by="ana"), None), actor="by").attributes
    assert "actor" not in history(PAID, actor="by").attributes


@pytest.mark.parametrize(("length", "left_out"), [(1024, None), (1025, ["actor"])])
def test_an_actor_that_is_no_name_is_left_out_and_the_row_says_so(length, left_out):
    row = history(change(None, item("ORDER#1", by="x" * length)), actor="by").attributes
    assert row.get("left_out") == left_out
    assert ("actor" in row) == (left_out is None)


def test_a_row_expires_by_the_time_of_its_change():
    key = Key("ORDER#{order_id}", "METADATA", table=Table("shop", ttl="expires"))
    router = Router()
    router.audit(key, keep_days=30)
    (route,) = checked_routes(router.routes)
    inserted = change(None, item("ORDER#1"), table=key.table)
    row = audit_row(route, inserted, {"order_id": "1"})
    assert row.attributes["expires"] == inserted.at.timestamp() + 30 * 24 * 60 * 60


def test_an_expiry_is_noted():
    expiry = change(item("ORDER#1"), None)
    expiry.expired = True
    assert history(expiry).attributes["expired"] is True
    assert "expired" not in history(PAID).attributes


def test_an_audit_may_go_to_a_template_of_its_own():
    row = history(PAID, into=Key("HISTORY#{order_id}", "{version}"))
    assert row.key == ("main", "HISTORY#1", VERSION)


def test_an_audit_goes_to_the_table_of_its_item():
    sources = [Key("A#{x}", "B", Table("one")), Key("A#{x}", "B", Table("two"))]
    router = Router()
    router.audit(*sources)
    (bound,) = checked_routes(router.routes)
    found = [audit_row(bound, change(None, item("A#1", "B"), table=key.table), {"x": "1"}).key for key in sources]
    assert [key[0] for key in found] == ["one", "two"]


def test_an_audit_of_a_change_without_its_images_is_refused():
    with pytest.raises(ImageError, match="the stream's view type is NEW_IMAGE"):
        history(change(item("ORDER#1"), item("ORDER#1", n=1), view="NEW_IMAGE"))


# Sizes.

KB = 1024


def sizes(entry):
    return {side: large["bytes"] for side, large in entry.get("large", {}).items()}


@pytest.mark.parametrize(("bytes_more", "large"), [(0, {}), (1, {"new": 32 * KB + 1})])
def test_a_value_over_32_kb_is_recorded_as_digest_and_size(bytes_more, large):
    text = "x" * (32 * KB + bytes_more)
    row = history(change(None, item("ORDER#1", text=text, more="y" * 32 * KB)))
    assert sizes(row.attributes["changes"]["text"]) == large
    assert row.attributes["changes"]["more"] == {"new": "y" * 32 * KB}


def test_the_digest_of_a_large_value_tells_whether_a_value_is_the_one():
    def fingerprint(**attributes):
        return history(change(None, item("ORDER#1", **attributes))).attributes["changes"]["doc"]["large"]["new"]

    one = {"a": ["x" * 40 * KB], "b": Decimal("1.50")}
    assert fingerprint(doc=one) == fingerprint(doc={"b": Decimal("1.5"), "a": ["x" * 40 * KB]})
    assert fingerprint(doc=one)["sha256"] != fingerprint(doc={**one, "b": 2})["sha256"]


def test_a_redacted_value_has_no_digest_whatever_its_size():
    row = history(change(None, item("ORDER#1", text="x" * 40 * KB)), redact=["text"])
    assert row.attributes["changes"] == {"text": {"redacted": ["new"]}}


def nested(levels):
    value = "x"
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_value_nested_as_deep_as_an_item_may_be_is_recorded_as_its_digest():
    before, after = item("ORDER#1", n=1, deep=nested(32)), item("ORDER#1", n=2, deep=nested(32))
    row = history(change(before, after)).attributes
    assert list(row["unchanged"]["deep"]) == ["large"]
    assert row["changes"] == {"n": {"old": 1, "new": 2}}
    assert encode(row)


def test_a_value_that_still_fits_its_row_is_written_out():
    assert history(change(None, item("ORDER#1", deep=nested(30)))).attributes["changes"]["deep"] == {"new": nested(30)}


def filled(letter, count, size, **more):
    return item("ORDER#1", **{f"a{number:04d}": letter * size for number in range(count)}, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "left_out"),
    [
        (filled("x", 13, 30 * KB, n=1), filled("x", 13, 30 * KB, n=2), None),
        (filled("x", 7, 30 * KB), filled("y", 7, 30 * KB), ["unchanged"]),
        (filled("x", 1000, 350), filled("y", 1000, 350), ["unchanged"]),
        (filled("x", 6000, 50), filled("y", 6000, 50), ["unchanged", "changes"]),
        (filled("x", 1500, 250), None, None),
        (None, filled("x", 6900, 50), ["changes"]),
    ],
    ids=["whole", "larger values", "values of some hundred bytes", "names", "removal", "names of an insert"],
)
def test_a_row_stays_under_400_kb_and_says_what_does_not_stand_in_it(old, new, left_out):
    row = history(change(old, new), key=b"k" * 32)
    stored = {"PK": row.key[1], "SK": row.key[2], **row.attributes}
    assert item_bytes(encode(stored)["M"]) <= ITEM_BYTES_MAX
    assert row.attributes.get("left_out") == left_out


def test_what_is_unchanged_goes_before_any_value_that_changed():
    old, new = (filled(letter, 6, 30 * KB, **{f"b{number}": "z" * 30 * KB for number in range(3)}) for letter in "xy")
    row = history(change(old, new)).attributes
    assert row["left_out"] == ["unchanged"]
    assert row["changes"]["a0000"] == {"old": "x" * 30 * KB, "new": "y" * 30 * KB}


def test_a_row_without_its_values_names_an_actor_that_is_left_out_too():
    new = filled("y", 6000, 50, by="x" * 1025)
    row = history(change(filled("x", 6000, 50), new), actor="by").attributes
    assert (row["left_out"], row["changes"]) == (["actor", "unchanged", "changes"], {})


@given(
    sizes=st.lists(st.integers(1, 60 * KB), max_size=12),
    changed=st.lists(st.booleans(), min_size=12, max_size=12),
    event=st.sampled_from(["INSERT", "MODIFY", "REMOVE"]),
)
@settings(max_examples=60)
def test_every_row_of_an_item_that_dynamodb_takes_is_one_too(sizes, changed, event):
    before = item("ORDER#1", **{f"a{number}": "x" * size for number, size in enumerate(sizes)})
    after = {
        name: value + "y" if name[0] == "a" and changed[int(name[1:])] else value for name, value in before.items()
    }
    assume(max(item_bytes(encode(image)["M"]) for image in (before, after)) <= ITEM_BYTES_MAX)
    row = history(change(None if event == "INSERT" else before, None if event == "REMOVE" else after), key=b"k" * 32)
    stored = {"PK": row.key[1], "SK": row.key[2], **row.attributes}
    assert item_bytes(encode(stored)["M"]) <= ITEM_BYTES_MAX


NUMBERS = st.from_regex(r"-?[0-9]{1,12}(\.[0-9]{1,9})?(E[0-9])?", fullmatch=True)
PLAIN = st.one_of(
    st.text("ab\u00e9", max_size=3).map(lambda text: {"S": text}),
    NUMBERS.map(lambda text: {"N": text}),
    st.sampled_from([{"BOOL": True}, {"BOOL": False}, {"NULL": True}, {"NULL": False}]),
)
OTHERS = [
    {"B": "aQ=="},
    {"SS": ["b", "a"]},
    {"S": True},
    {"N": 1},
    {"BOOL": "true"},
    {"S": "a", "N": "1"},
    {},
    {"M": []},
]
NESTED = st.recursive(
    PLAIN | st.sampled_from(OTHERS),
    lambda values: st.one_of(
        st.dictionaries(st.text(max_size=2), values, max_size=2).map(lambda found: {"M": found}),
        st.lists(values, max_size=2).map(lambda found: {"L": found}),
    ),
    max_leaves=4,
)
IMAGES = st.one_of(
    st.dictionaries(st.sampled_from("ab"), PLAIN, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b", "_sf_x", ""]), NESTED, max_size=3),
)


@given(old=st.none() | IMAGES, new=st.none() | IMAGES, redact=st.sampled_from([[], ["a"]]))
@settings(max_examples=100)
def test_a_row_of_plain_values_is_stored_as_one_that_is_looked_at_closely(old, new, redact):
    assume(old is not None or new is not None)
    quick = stored_or_refused(old, new, redact)
    with patch.object(rows, "stored_values", lambda *_: None):
        assert stored_or_refused(old, new, redact) == quick


def stored_or_refused(old, new, redact):
    images = {"OldImage": old, "NewImage": new}
    raw = record(None if old is None else item("ORDER#1"), None if new is None else item("ORDER#1"), 7)
    raw["dynamodb"] |= {side: image | raw["dynamodb"][side] for side, image in images.items() if image is not None}
    try:
        return CANONICAL.encode(encode(history(Change(raw, Origin(MAIN, VERSION_PREFIX)), redact=redact).attributes))
    except (HandlerError, RecordError) as error:
        return str(error)


@given(NUMBERS)
def test_a_number_that_is_stored_as_it_came_has_its_one_spelling(text):
    if rows.PLAIN_NUMBER.fullmatch(text):
        assert number_text(decode({"N": text})) == text


# Under faults.


@pytest.mark.slow
@pytest.mark.parametrize("source", ["stream", "kinesis"])
@pytest.mark.parametrize(
    "options",
    [{"redact": ["email"], "actor": "by"}, {"fields": ["n", "email"], "unchanged": False, "keep_days": 7}],
    ids=["whole", "differences"],
)
def test_every_change_has_its_row_whatever_goes_wrong(options, source):
    key = Key("ORDER#{order_id}", "METADATA", table=Table("shop", ttl="expires"))
    router = Router()
    router.audit(key, **options)
    items = [{"n": 1, "email": "a@example.com", "by": "ana"}, {"n": 2, "by": "bo", "note": "x"}]
    assert check(App("shop", routers=[router]), {key: items}, histories=40, source=source).histories == 40
