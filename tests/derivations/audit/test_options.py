"""What the rows of an audit hold, as it is declared."""

import pytest

from streamfold import AUDIT, App, Key, Router, Table
from streamfold.derivations.audit.options import Recorded, checked_recorded, default_target, plain_row, refused_target
from streamfold.errors import DeclarationError

GIVEN = {"redact": (), "fields": None, "actor": None, "unchanged": True, "keep_days": None}


def recorded(**options):
    return checked_recorded("shop.py:7", **{**GIVEN, **options})


def test_an_audit_without_options_records_all_for_good():
    assert recorded() == Recorded(frozenset(), None, None, unchanged=True, keep_days=None)


def test_options_are_taken_as_they_are_given():
    given = {"redact": ["email"], "fields": ["a", "email"], "actor": "by", "unchanged": False, "keep_days": 90}
    assert recorded(**given) == Recorded(frozenset({"email"}), frozenset({"a", "email"}), "by", False, 90)


AT = r"^audit at shop.py:7 has "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"redact": "email"}, r"redact='email': expected a list of names, \[\"email\"\]\."),
        ({"redact": ["a", 5]}, r"redact=\['a', 5\]: expected names of attributes, as text\."),
        ({"redact": [""]}, r"redact=\[''\]: expected names of attributes, as text\."),
        ({"redact": 5}, "redact=5: expected names of attributes, as text"),
        ({"fields": "a"}, r"fields='a': expected a list of names, \[\"a\"\]\."),
        ({"fields": []}, r"fields=\[\]: expected names of attributes, or no fields= for all\."),
        ({"actor": ""}, "actor='': expected the name of the attribute with each writer's identity"),
        ({"actor": ["by"]}, r"actor=\['by'\]: expected the name of the attribute"),
        ({"actor": "_sf_v"}, "actor='_sf_v': expected the name of the attribute"),
        ({"actor": "by", "redact": ["by"]}, "actor='by', which redact= names too: a row would hold the value after"),
        ({"unchanged": "no"}, "unchanged='no': expected True or False"),
        ({"keep_days": 0}, "keep_days=0: expected a whole number from 1 to 36500"),
        ({"keep_days": 36501}, "keep_days=36501: expected a whole number from 1 to 36500"),
        ({"keep_days": True}, "keep_days=True: expected a whole number"),
        ({"keep_days": 1.5}, "keep_days=1.5: expected a whole number"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_the_place(options, message):
    with pytest.raises(DeclarationError, match=AT + message):
        recorded(**options)


@pytest.mark.parametrize("keep_days", [1, 36_500])
def test_the_longest_and_the_shortest_time_are_taken(keep_days):
    assert recorded(keep_days=keep_days).keep_days == keep_days


ITEM, FIELDS = "AUDIT#{item:rest}", "AUDIT#{order_id}"


@pytest.mark.parametrize(
    ("keep_days", "partition", "table", "message"),
    [
        (None, ITEM, Table("shop"), None),
        (30, ITEM, Table("shop", ttl="expires"), None),
        (None, ITEM, Table("shop", ttl="at"), None),
        (None, ITEM, Table("shop", partition="item", sort="version"), None),
        (
            30,
            ITEM,
            Table("shop"),
            "has keep_days=30, but table 'shop' declares no time-to-live attribute: Table('shop',",
        ),
        (30, ITEM, Table("shop", ttl="at"), "of which 'at' is an attribute of table 'shop' itself: give the history a"),
        (None, ITEM, Table("shop", sort="changes"), "of which 'changes' is an attribute of table 'shop' itself"),
        (None, FIELDS, Table("shop", partition="item"), "of which 'item' is an attribute of table 'shop' itself"),
    ],
)
def test_a_target_that_cannot_hold_the_rows_is_refused_with_the_remedy(keep_days, partition, table, message):
    found = refused_target(Recorded(keep_days=keep_days), Key(partition, "{version:rest}", table=table))
    assert (message in found) if message else found is None


def test_a_stored_row_has_item_and_version_wherever_its_key_holds_them():
    target = Key("AUDIT#{item:rest}", "{version:rest}", table=Table("shop", partition="item", sort="version"))
    row = {"item": "AUDIT#ORDER#1|METADATA", "version": "00/label/7", "event": "INSERT"}
    assert plain_row(target, row) == {"item": "ORDER#1|METADATA", "version": "00/label/7", "event": "INSERT"}


def test_an_item_that_is_no_history_row_is_none():
    assert plain_row(AUDIT, {"PK": "ORDER#1", "SK": "METADATA"}) is None


def test_the_default_target_lies_in_the_table_of_the_items():
    shop = Table("shop")
    assert default_target(Table("main")) is AUDIT
    assert default_target(shop) == Key("AUDIT#{item:rest}", "{version:rest}", table=shop)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, ["a", "b", "c"]),
        ({"redact": ["a"]}, ["b", "c"]),
        ({"fields": ["a", "b"]}, ["a", "b"]),
        ({"redact": ["a"], "fields": ["a", "b"]}, ["b"]),
    ],
)
def test_values_are_shown_of_what_is_recorded_and_not_redacted(options, shown):
    assert [name for name in "abc" if recorded(**options).shows(name)] == shown


@pytest.mark.parametrize("turned", [False, True])
def test_sources_of_one_table_have_one_target_although_one_key_alone_says_its_time_to_live(turned):
    sources = [Key("A#{a}", "META"), Key("B#{b}", "META", Table("main", ttl="expires"))]
    router = Router()
    router.audit(*(reversed(sources) if turned else sources))
    (route,) = App("shop", routers=[router]).routes
    assert [target.table.ttl for target in route.into] == ["expires"]
