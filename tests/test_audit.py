"""The history row of a change."""

from datetime import UTC, datetime

import pytest

from streamfold import Key, Router, Table
from streamfold.audit import audit_rows
from streamfold.checks import checked_routes
from streamfold.errors import ImageError
from tests.derived import ORDER
from tests.records import VERSION_PREFIX, change, item

PAID = change(item("ORDER#1", status="new"), item("ORDER#1", status="paid"), 7)
VERSION = f"{VERSION_PREFIX}{7:040d}"


def history(of, **options):
    router = Router()
    router.audit(ORDER, **options)
    (row,) = audit_rows(checked_routes(router.routes)[0], of, {"order_id": "1"})
    return row


def test_an_audit_row_says_what_changed_from_what_to_what_and_when():
    row = history(PAID)
    assert row.key == ("main", "AUDIT#ORDER#1|METADATA", VERSION)
    assert row.attributes["changes"] == {"status": {"old": "new", "new": "paid"}}
    assert ("MODIFY", datetime(2026, 3, 1, 9, tzinfo=UTC)) == (row.attributes["event"], row.attributes["at"])


def test_an_audit_row_is_a_function_of_the_change_alone():
    assert history(PAID) == history(PAID)


def test_an_audit_row_of_an_item_that_came_or_went_has_one_side():
    assert history(change(None, item("ORDER#1", status="new"))).attributes["changes"] == {"status": {"new": "new"}}
    assert history(change(item("ORDER#1", status="new"), None)).attributes["changes"] == {"status": {"old": "new"}}


def test_a_redacted_attribute_s_change_is_noted_without_its_values():
    assert history(PAID, redact=["status"]).attributes["changes"] == {"status": {"redacted": True}}


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
    found = [audit_rows(bound, change(None, item("A#1", "B"), table=key.table), {"x": "1"})[0].key for key in sources]
    assert [key[0] for key in found] == ["one", "two"]


def test_an_audit_of_a_change_without_its_images_is_refused():
    with pytest.raises(ImageError, match="the stream's view type is NEW_IMAGE"):
        history(change(item("ORDER#1"), item("ORDER#1", n=1), view="NEW_IMAGE"))
