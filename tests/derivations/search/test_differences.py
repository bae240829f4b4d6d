"""What differs between a declared index and one of a server, which tells it in its own way."""

from decimal import Decimal

import pytest

from streamfold.derivations.search.indexes import IndexDifference, mapping_differences, setting_differences


def differ(declared, found, **top):
    """The lines about two mappings with these fields."""
    told = mapping_differences(
        {"dynamic": False, "properties": declared, **top}, {"dynamic": "false", "properties": found}
    )
    return [str(difference) for difference in told]


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ({"type": "text"}, {"type": "text"}),
        ({"type": "text", "index": True, "norms": True, "store": False}, {"type": "text"}),
        ({"type": "keyword", "doc_values": True, "norms": False}, {"type": "keyword"}),
        ({"type": "keyword", "ignore_above": 256}, {"type": "keyword", "ignore_above": 256}),
        ({"type": "scaled_float", "scaling_factor": 100}, {"type": "scaled_float", "scaling_factor": Decimal("100.0")}),
        ({"type": "text", "analyzer": "a", "search_analyzer": "a"}, {"type": "text", "analyzer": "a"}),
        ({"type": "text", "copy_to": "all"}, {"type": "text", "copy_to": ["all"]}),
        (
            {"type": "text", "fields": {"raw": {"type": "keyword"}}},
            {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        ),
        ({"type": "object", "properties": {"x": {"type": "long"}}}, {"properties": {"x": {"type": "long"}}}),
        ({"type": "nested", "include_in_parent": False}, {"type": "nested"}),
        ({"type": "object", "enabled": True, "dynamic": "strict"}, {"type": "object", "dynamic": "strict"}),
    ],
)
def test_a_mapping_is_the_same_in_the_words_of_the_server(declared, found):
    assert differ({"field": declared}, {"field": found}) == []


def test_a_dotted_name_is_a_field_of_an_object():
    assert differ({"p.q": {"type": "long"}}, {"p": {"properties": {"q": {"type": "long"}}}}) == []


@pytest.mark.parametrize(
    ("declared", "found", "line"),
    [
        ({"type": "long"}, None, "field f: expected long, found nothing"),
        ({"type": "long"}, {"type": "text"}, "field f: expected long, found text"),
        ({"properties": {}}, {"type": "nested"}, "field f: expected object, found nested"),
        ({"type": "text", "analyzer": "german"}, {"type": "text"}, "field f analyzer: expected german, found nothing"),
        ({"type": "text"}, {"type": "text", "analyzer": "german"}, "field f analyzer: expected nothing, found german"),
        (
            {"type": "keyword", "doc_values": False},
            {"type": "keyword"},
            "field f doc_values: expected false, found nothing",
        ),
        (
            {"type": "text", "fields": {"raw": {"type": "keyword"}}},
            {"type": "text"},
            "field f.raw: expected keyword, found nothing",
        ),
        (
            {"type": "nested", "properties": {"n": {"type": "long"}}},
            {"type": "nested", "properties": {"n": {"type": "integer"}}},
            "field f.n: expected long, found integer",
        ),
        (None, {"type": "text"}, "field f: expected nothing, found text"),
    ],
)
def test_what_differs_in_a_field_is_one_line(declared, found, line):
    assert differ({"f": declared} if declared else {}, {"f": found} if found else {}) == [line]


def test_fields_of_the_server_are_expected_where_documents_may_add_them():
    told = mapping_differences({"dynamic": True, "properties": {}}, {"properties": {"more": {"type": "long"}}})
    assert list(told) == []


def test_what_is_said_of_the_whole_mapping_is_compared():
    assert differ({}, {}, date_detection=False, _source={"enabled": True}) == [
        "mapping date_detection: expected false, found nothing"
    ]
    (told,) = mapping_differences({"dynamic": "strict", "properties": {}}, {"dynamic": "false"})
    assert told == IndexDifference("mapping", "dynamic", "strict", "false")


def test_declared_settings_are_compared_as_texts_and_others_are_not():
    declared = {"index.refresh_interval": -1, "index.blocked": True, "index.filter": ["a", "b"], "index.shards": 2}
    found = {"index.refresh_interval": "-1", "index.blocked": "true", "index.filter": ["a", "b"], "index.uuid": "x"}
    assert list(setting_differences(declared, {**found, "index.shards": "1"})) == [
        IndexDifference("setting", "index.shards", "2", "1")
    ]
    (missing,) = setting_differences({"index.shards": 2}, {})
    assert str(missing) == "setting index.shards: expected 2, found nothing"


def test_a_difference_names_the_index_where_there_are_several():
    difference = IndexDifference("field", "f", "long", None, "orders~000002")
    assert str(difference) == "field f of orders~000002: expected long, found nothing"
