"""Declarations of searches: a wrong one is refused with its line and a remedy."""

import json

import pytest

from streamfold import App, Document, Key, Parts, Router, Row, Sum, Table
from streamfold.derivations.search.options import options_of
from streamfold.errors import DeclarationError, ManifestError, SettingsError
from streamfold.routes.application import Application
from streamfold.settings import Settings

ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
PRODUCT = Key("PRODUCT#{product_id}", "METADATA")
FIELDS = {"title": "text", "price": "scaled_float"}


def declared(*sources, to="orders", fields=FIELDS, parts=(), **options):
    """An application with one search."""
    router = Router()
    if parts:

        @router.search(*sources, to=to, fields=fields, parts=parts, **options)
        def order(item, parts):
            return Document(title=item["title"], lines=[part["price"] for part in parts(LINE)])

    else:

        @router.search(*sources, to=to, fields=fields, **options)
        def order(item):
            return Document(title=item["title"])

    return App("shop", routers=[router])


def route_of(app):
    return app.routes[0]


def test_a_handler_is_a_plain_function_of_an_item_and_its_parts():
    router = Router()

    @router.search(ORDER, to="orders", fields=FIELDS, parts=[LINE, TOTAL])
    def order(item, parts, order_id):
        skus = [line.key["sku"] for line in parts(LINE)]
        return Document(title=item["title"], number=order_id, skus=skus, total=parts.one(TOTAL).get("total", 0))

    from streamfold import Part

    given = Parts({LINE: [Part({"price": 3}, {"sku": "a"})], TOTAL: [{"total": 3}]})
    assert order({"title": "x"}, given, "7") == Document(title="x", number="7", skus=["a"], total=3)
    assert order({"title": "x"}, Parts({LINE: [], TOTAL: []}), "7").fields["total"] == 0


def test_fields_give_a_mapping_that_infers_nothing_and_has_the_fields_of_the_framework():
    mapping = options_of(route_of(declared(ORDER))).mapping
    assert mapping["dynamic"] is False
    assert mapping["properties"]["price"] == {"type": "scaled_float", "scaling_factor": 100}
    assert mapping["properties"]["_sf_gone"] == {"type": "boolean"}


def test_a_mapping_may_come_from_a_file_beside_the_handler(tmp_path, monkeypatch):
    (tmp_path / "orders.json").write_text(json.dumps({"mappings": {"properties": {"title": {"type": "text"}}}}))
    mapping = options_of(route_of(declared(ORDER, mapping=str(tmp_path / "orders.json"), fields=None))).mapping
    assert set(mapping["properties"]) == {"title", "_sf_gone", "_sf_at", "_sf_h"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"to": "Orders"}, "small letters, digits"),
        ({"to": "-orders"}, "begins with a letter or a digit"),
        ({"to": ""}, 'expected the name of an index, to="products"'),
        ({"to": "orders-{tenant}"}, "whose field 'tenant' is none of"),
        ({"id": "{number}"}, "must hold every field of the source's key. Missing: order_id"),
        ({"id": "{order_id}x{number}"}, "two fields need a '#' between them"),
        ({"id": 3}, "expected a template"),
        ({"fields": None}, "needs mapping= or fields="),
        ({"mapping": "m.json"}, "needs mapping= or fields=, and not both"),
        ({"fields": {}}, 'expected an object with "properties"'),
        ({"fields": {"title": 3}}, "3 is no type"),
        ({"fields": {"_sf_gone": "text"}}, "are reserved"),
        ({"fields": None, "mapping": "nowhere.json"}, "nowhere.json cannot be read"),
        ({"settings": "nowhere.json"}, "nowhere.json cannot be read"),
        ({"deletes": "hidden"}, "expected kept or removed"),
        ({"replaces": "other"}, "expected the name of another search"),
        ({"parts": [PRODUCT]}, "not in the partition of"),
        ({"parts": [Key("ORDER#{order_id}", "{what}")]}, "takes keys of"),
        ({"parts": "LINE"}, "expected a list of Keys"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(options, text):
    with pytest.raises(DeclarationError, match=text) as refused:
        declared(ORDER, **options)
    assert "test_options.py:" in str(refused.value)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "m.json").write_text("{mappings}")
    with pytest.raises(DeclarationError, match="which is no JSON"):
        declared(ORDER, fields=None, mapping=str(tmp_path / "m.json"))


def test_a_part_that_several_parents_would_share_is_refused():
    parent = Key("ORDER#{order_id}", "VERSION#{version}")
    with pytest.raises(DeclarationError, match="Missing: version"):
        declared(parent, parts=[LINE])


def test_several_sources_have_no_parts_and_no_id():
    for options in ({"id": "{order_id}"}, {"parts": [LINE]}):
        with pytest.raises(DeclarationError, match="several sources"):
            declared(ORDER, PRODUCT, **options)


def two_searches(first="orders", second="orders", **options):
    router = Router()

    @router.search(ORDER, to=first, fields=FIELDS)
    def one(item):
        return Document()

    @router.search(ORDER, to=second, fields=FIELDS, **options)
    def two(item):
        return Document()

    return App("shop", routers=[router])


def test_two_searches_of_one_index_are_refused_unless_one_takes_it_over():
    with pytest.raises(DeclarationError, match="Index 'orders' is written by 'one'"):
        two_searches()
    with pytest.raises(DeclarationError, match="is written by"):
        two_searches("orders-{order_id}", "orders-all")
    assert len(two_searches(replaces="one").routes) == 2


def test_a_handler_that_asks_for_what_is_no_field_is_refused():
    router = Router()
    with pytest.raises(DeclarationError, match="asks for 'parts'"):

        @router.search(ORDER, to="orders", fields=FIELDS)
        def order(item, parts):
            return Document()


def test_a_handler_that_gives_nothing_is_refused_with_a_line():
    router = Router()
    with pytest.raises(DeclarationError, match=r"return Document\("):

        @router.search(ORDER, to="orders", fields=FIELDS)
        def order(item):
            Document(title=item["title"])


def test_a_row_of_a_view_may_be_a_part():
    router = Router()

    @router.view(LINE, into=TOTAL)
    def total(item):
        return Row(total=Sum(item["price"]))

    @router.search(ORDER, to="orders", fields=FIELDS, parts=[LINE, TOTAL])
    def order(item, parts):
        return Document(total=parts.one(TOTAL).get("total", 0))

    assert "order" in App("shop", routers=[router]).chained


def test_items_of_several_tables_have_ids_with_their_table():
    other = Key("ORDER#{order_id}", "METADATA", table=Table("archive"))
    assert options_of(route_of(declared(ORDER, other))).names_table


def test_a_function_without_an_index_is_refused_when_it_starts():
    route = route_of(declared(ORDER, group="search"))
    with pytest.raises(SettingsError, match="STREAMFOLD_SEARCH"):
        route.kind.check_settings(route, Settings())
    route.kind.check_settings(route, Settings(group="main"))


def test_an_index_or_an_id_that_changes_is_refused():
    kind = route_of(declared(ORDER)).kind
    before, index, identity = (
        kind.identity(route_of(app))
        for app in (declared(ORDER), declared(ORDER, to="sales"), declared(ORDER, id="{order_id}"))
    )
    kind.compare("order", before, before)
    with pytest.raises(ManifestError, match="changed to= from 'orders' to 'sales'"):
        kind.compare("order", before, index)
    with pytest.raises(ManifestError, match="changed id= from 'key'"):
        kind.compare("order", before, identity)


def test_an_application_is_built_from_it():
    assert isinstance(declared(ORDER, parts=[LINE]), Application)
