"""Attributes that declarations name and no item of the records has: which are found, and what is said of them."""

import pytest

from streamfold import Add, App, Count, Document, Key, Lookup, Router, Row
from streamfold.errors import DeclarationError, plain
from streamfold.replay.mismatches import NAMES_MAX, unseen_attributes
from tests.helpers.records import change, item

PARCEL, CARRIER, OWNER = Key("PARCEL#{id}", "M"), Key("CARRIER#{carrier_id}", "M"), Key("OWNER#{owner_id}", "M")
DAY, LETTER = Key("DAY#{day}", "ALL"), Key("LETTER#{id}", "M")
PARCELS = [
    change(None, item("CARRIER#k", "M", name="Kite", owner_id="o"), 1),
    change(None, item("PARCEL#1", "M", email="a@b", status="new", carrier_id="k"), 2),
    change(item("PARCEL#1", "M", email="a@b", status="new"), item("PARCEL#1", "M", email="a@b", writer="w"), 3),
]


def audit(*sources, **options):
    return lambda router: router.audit(*sources, **options)


def on(changed):
    def declared(router):
        @router.on(PARCEL, changed=changed, events=["MODIFY"], into=DAY)
        def moved(change):
            return Add(day="x", n=1)

    return declared


def external(changed):
    def declared(router):
        @router.on(PARCEL, changed=changed, external=True)
        def mail(change):
            return None

    return declared


def looked_up(router):
    @router.view(PARCEL, into=DAY, lookup={"carrier": Lookup(CARRIER, reads=["nmae"], carrier_id="carier_id")})
    def per_day(parcel, carrier):
        return Row(day="x", n=Count())


def looked_up_through(router):
    lookups = {"carrier": CARRIER, "owner": Lookup(OWNER, through="carrier", owner_id="owner")}

    @router.view(PARCEL, into=DAY, lookup=lookups)
    def per_day(parcel, carrier, owner):
        return Row(day="x", n=Count())


def unseen(declared, changes=PARCELS):
    router = Router()
    declared(router)
    return unseen_attributes(App("parcels", routers=[router]).routes, changes)


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        (audit(PARCEL, redact=["emial"]), [("redact=", "emial", "email")]),
        (audit(PARCEL, fields=["status", "Status"]), [("fields=", "Status", "status")]),
        (audit(PARCEL, actor="writter"), [("actor=", "writter", "writer")]),
        (audit(PARCEL, redact=["zzz"]), [("redact=", "zzz", None)]),
        (on(["statsu"]), [("changed=", "statsu", "status")]),
        (external(["statsu"]), [("changed=", "statsu", "status")]),
        (
            looked_up,
            [
                ("carrier_id= of lookup 'carrier'", "carier_id", "carrier_id"),
                ("reads= of lookup 'carrier'", "nmae", "name"),
            ],
        ),
        (looked_up_through, [("owner_id= of lookup 'owner'", "owner", "owner_id")]),
    ],
)
def test_a_name_that_no_item_has_is_found_with_the_nearest(declared, found):
    assert [(each.named.option, each.named.name, each.near) for each in unseen(declared)] == found


@pytest.mark.parametrize(
    "declared",
    [
        audit(PARCEL, redact=["email"], actor="writer"),  # in the new image, or in one of all
        on(["status"]),  # in the old image alone
        audit(LETTER, redact=["emial"]),  # no item of the key was seen
        audit(PARCEL, CARRIER, redact=["name"]),  # one of the sources has it
    ],
)
def test_a_name_that_one_item_has_is_not_reported(declared):
    assert unseen(declared) == []


def test_a_derived_attribute_is_none_of_those_that_a_history_has():
    marked = {"_sf_a": {"parcels/x": {"size"}}, "size": "large"}
    changes = [change(None, item("PARCEL#1", "M", **marked), 1)]
    assert [each.named.name for each in unseen(audit(PARCEL, redact=["size"]), changes)] == ["size"]


def test_of_very_many_names_those_that_are_declared_are_seen():
    wide = {f"a{number}": 1 for number in range(NAMES_MAX + 10)}
    changes = [change(None, item(f"PARCEL#{n}", "M", **wide, **({"email": 1} if n else {})), n + 1) for n in range(2)]
    assert unseen(audit(PARCEL, redact=["email"]), changes) == []


def test_the_message_names_the_option_the_handler_its_line_and_the_nearest():
    (each,) = unseen(audit(PARCEL, redact=["emial"]))
    assert "redact= of audit 'audit_parcel_m' (" in each.text
    assert "test_mismatches.py:" in each.text
    assert plain(each.text).endswith(
        "names 'emial', which no item of Key('PARCEL#{id}', 'M') has in the records. Did you mean 'email'?"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "keywrod"}, "the field 'status' of type 'keywrod', which no index has: expected keyword."),
        ({"status": {"type": "txet"}}, "of type 'txet', which no index has: expected text."),
        ({"a": {"properties": {"b": {"type": "doubel"}}}}, "the field 'b' of type 'doubel'"),
        ({"a": {"type": "text", "fields": {"raw": {"type": "keywords"}}}}, "the field 'raw' of type 'keywords'"),
        ({"a": "qqq"}, "expected a type of OpenSearch, such as text or keyword."),
        ({"a": {"type": ["text"]}}, "which no index has"),
    ],
)
def test_a_type_that_no_index_has_is_refused_at_import(fields, message):
    with pytest.raises(DeclarationError, match=message):

        @Router().search(PARCEL, to="parcels", fields=fields)
        def found(parcel):
            return Document(status=parcel["status"])
