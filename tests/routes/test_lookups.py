"""Lookups as they are declared: the composition of a reference, and refusals of declarations."""

import pytest

from streamfold import App, Item, Key, Lookup, Router, Row, Sum, Table
from streamfold.errors import AttributeMissing, DeclarationError, HandlerError
from streamfold.records.images import Image
from streamfold.routes.lookups import LOOKUPS_MAX, REFERENCES_MAX, ReferentImage, check_count, joined, references

LINE = Key("ORDER#{order_id}", "ITEM#{sku}")
PRODUCT, SUPPLIER = Key("PRODUCT#{product_id}", "META"), Key("SUPPLIER#{supplier_id}", "META")
AGENT = Key("AGENT#{agent_id}", "META")
SALES = Key("CATEGORY#{category}", "SALES")
EVERY = Key("SETTINGS", "META")


def referred(lookup, image, fields, referents):
    """The one item that a lookup refers to, or None."""
    found = references(lookup, image, fields, referents)
    assert len(found) <= 1
    return next(iter(found), None)


def declared(lookup, function=None, *, source=LINE, into=SALES, kind="view", **options):
    """The route of a view with these lookups."""
    router = Router()
    given = {"into": into} if kind != "attributes" else {}
    getattr(router, kind)(source, lookup=lookup, **given, **options)(function or called(*(lookup or ())))
    return App("shop", routers=[router]).routes[0]


def called(*names):
    """A handler with these parameters behind the item."""
    namespace = {"Row": Row, "Sum": Sum}
    names = [name for name in names if isinstance(name, str) and name.isidentifier()]
    text = f"def sales({', '.join(['item', *names])}):\n    return Row(category='a', total=Sum(1))\n"
    exec(text, namespace)
    return namespace["sales"]


def refusal(*given, **options):
    with pytest.raises(DeclarationError) as refused:
        declared(*given, **options)
    return str(refused.value)


def test_a_key_alone_stands_for_a_lookup_of_it():
    (one,), (other,) = declared({"product": PRODUCT}).lookups, declared({"product": Lookup(PRODUCT)}).lookups
    assert one == other
    assert (one.name, one.key, one.optional, one.reads) == ("product", PRODUCT, False, None)


def test_a_field_comes_from_the_source_key_or_is_an_attribute_of_its_name_or_another():
    order = Key("ORDER#{order_id}", "META")
    route = declared({"product": PRODUCT, "order": order, "agent": Lookup(AGENT, agent_id="assigned_to")})
    image = Image({"product_id": {"S": "p"}, "assigned_to": {"S": "x"}})
    found = [referred(each, image, {"order_id": "1", "sku": "a"}, {}) for each in route.lookups]
    assert found == [("main", "PRODUCT#p", "META"), ("main", "ORDER#1", "META"), ("main", "AGENT#x", "META")]


@pytest.mark.parametrize("value", [None, {"NULL": True}, {"S": ""}, {"B": b""}])
def test_an_item_without_an_attribute_refers_to_nothing(value):
    (product,) = declared({"product": PRODUCT}).lookups
    assert referred(product, Image({} if value is None else {"product_id": value}), {}, {}) is None


def test_a_value_that_the_field_does_not_take_is_the_handlers_error():
    (product,) = declared({"product": Key("PRODUCT#{product_id:d}", "META")}).lookups
    with pytest.raises(HandlerError, match="Lookup 'product' makes no key of"):
        referred(product, Image({"product_id": {"S": "p"}}), {}, {})


def test_a_lookup_through_another_is_composed_of_that_referent():
    product, supplier = declared(
        {"product": Lookup(PRODUCT, reads=["name"]), "supplier": Lookup(SUPPLIER, through="product")}
    ).lookups
    item, image = ("main", "PRODUCT#p", "META"), Image({"supplier_id": {"S": "s"}})
    assert referred(supplier, Image({}), {}, {"product": [(item, image)]}) == ("main", "SUPPLIER#s", "META")
    assert referred(supplier, Image({}), {}, {"product": [(item, Image({}))]}) is None
    assert referred(supplier, Image({}), {}, {}) is None
    assert product.needed == {"supplier_id"}
    assert supplier.through == product


def test_what_a_lookup_through_another_is_composed_of_counts_as_read():
    product, _ = declared(
        {"product": Lookup(PRODUCT, reads=["name"]), "supplier": Lookup(SUPPLIER, through="product")}
    ).lookups
    one, other = Image({"supplier_id": {"S": "s"}, "x": {"N": "1"}}), Image({"supplier_id": {"S": "t"}})
    assert not product.agrees(one, other)
    assert product.agrees(one, Image({"supplier_id": {"S": "s"}, "x": {"N": "2"}}))


def test_an_absent_referent_never_agrees_with_one_that_lacks_the_attributes():
    (product,) = declared({"product": Lookup(PRODUCT, reads=["name"])}).lookups
    there, absent = Image({"PK": {"S": "PRODUCT#p"}}), Image({})
    assert not product.agrees(there, absent)
    assert product.agrees(absent, absent)


def test_a_derived_attribute_counts_where_the_kind_sees_it():
    """Without reads=, what is compared is what the handler gets: a view that gets it would be stale otherwise."""
    (seen,) = declared({"product": PRODUCT}).lookups
    (written,) = declared({"product": PRODUCT}, kind="attributes").lookups
    mark = {"_sf_a": {"M": {"shop/x": {"SS": ["size"]}}}, "name": {"S": "n"}}
    small, large = Image({**mark, "size": {"S": "small"}}), Image({**mark, "size": {"S": "large"}})
    assert (seen.agrees(small, large), written.agrees(small, large)) == (False, True)


def test_other_attributes_of_a_referent_than_those_of_reads_cannot_be_read():
    (product,) = declared({"product": Lookup(PRODUCT, reads=["name"])}).lookups
    image = ReferentImage(product, {"name": {"S": "n"}, "price": {"N": "3"}})
    assert (image["name"], dict(image), bool(image)) == ("n", {"name": "n"}, True)
    for read in (lambda: image["price"], lambda: image.get("price"), lambda: "price" in image):
        with pytest.raises(HandlerError, match=r"reads .price. of .product., .*Write reads="):
            read()
    with pytest.raises(AttributeMissing):
        _ = ReferentImage(product, {})["name"]


@pytest.mark.parametrize(
    ("name", "value"), [("ref[0]", {"L": [{"S": "7"}]}), ("ref[0].id", {"L": []}), ("ref.ids[0]", {"M": {}})]
)
def test_an_element_of_a_list_is_no_path_and_is_refused_with_the_remedy(name, value):
    (product,) = declared({"product": Lookup(PRODUCT, optional=True, product_id=name)}).lookups
    with pytest.raises(HandlerError, match=r"a path names values in maps.* with many=True"):
        referred(product, Image({"ref": value}), {}, {})
    assert referred(product, Image({}), {}, {}) is None
    assert referred(product, Image({"ref": {"S": "7"}}), {}, {}) is None
    assert referred(product, Image({"ref": value, name: {"S": "7"}}), {}, {}) == ("main", "PRODUCT#7", "META")


def test_a_path_takes_a_value_in_maps_unless_an_attribute_has_its_name():
    (product,) = declared({"product": Lookup(PRODUCT, product_id="ref.of.id")}).lookups
    inner = {"ref": {"M": {"of": {"M": {"id": {"S": "7"}}}}}}
    assert referred(product, Image(inner), {}, {}) == ("main", "PRODUCT#7", "META")
    assert referred(product, Image({**inner, "ref.of.id": {"S": "8"}}), {}, {}) == ("main", "PRODUCT#8", "META")
    for nothing in ({}, {"ref": {"M": {}}}, {"ref": {"S": "7"}}, {"ref": {"M": {"of": {"M": {"id": {"S": ""}}}}}}):
        assert referred(product, Image(nothing), {}, {}) is None


def test_changes_of_the_map_that_a_path_begins_with_count_for_lookups_through_its_referent():
    supplier = Lookup(Key("SUPPLIER#{supplier_id}", "META"), through="product", supplier_id="made.by")
    lookups = declared({"product": Lookup(PRODUCT, reads=["name"]), "supplier": supplier}).lookups
    assert lookups[0].needed == {"made"}


# Lists of references, and whole keys.

TAG = Key("TAG#{tag}", "META")


def many(value, **options):
    (tags,) = declared({"tags": Lookup(TAG, tag="tags", many=True, **options)}).lookups
    return references(tags, Image({"tags": value} if value is not None else {}), {"order_id": "1", "sku": "a"}, {})


def keys_of(*tags):
    return tuple(("main", f"TAG#{tag}", "META") for tag in tags)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ({"NULL": True}, ()),
        ({"L": []}, ()),
        ({"L": [{"S": "b"}, {"S": "a"}, {"S": ""}, {"NULL": True}, {"S": "b"}]}, ("b", "a", "b")),
        ({"SS": ["c", "a", "b"]}, ("a", "b", "c")),
    ],
)
def test_a_list_is_referred_to_in_its_order_and_a_set_by_value(value, expected):
    assert many(value) == keys_of(*expected)


def test_a_set_of_numbers_is_referred_to_by_value():
    numbered = Key("TAG#{tag:03d}", "META")
    (tags,) = declared({"tags": Lookup(numbered, tag="tags", many=True)}).lookups
    found = references(tags, Image({"tags": {"NS": ["10", "9"]}}), {}, {})
    assert [each[1] for each in found] == ["TAG#009", "TAG#010"]


@pytest.mark.parametrize(
    "value", [{"S": "a"}, {"M": {}}, {"N": "1"}, {"L": [{"M": {}}]}, {"L": [{"S": "a"}, {"L": []}]}]
)
def test_a_value_that_is_no_list_of_references_is_the_handler_s_error(value):
    with pytest.raises(HandlerError, match=r"Lookup 'tags' (has many=True and takes|makes no key)"):
        many(value)


def test_the_type_of_a_value_that_is_no_list_is_named():
    with pytest.raises(HandlerError, match="is of type str in this item: expected a list or a set of references"):
        many({"S": "a"})


def test_forty_references_are_taken_and_more_are_refused_with_their_number():
    check_count("tags", REFERENCES_MAX)
    with pytest.raises(HandlerError, match=r"refers to 41 others through the lookups of 'tags': 40 at most"):
        check_count("tags", REFERENCES_MAX + 1)


def test_the_handler_gets_the_referents_of_a_list_that_exist():
    (tags,) = declared({"tags": Lookup(TAG, tag="tags", many=True, reads=["name"])}).lookups
    found = [Image({"name": {"S": "a"}}), Image({}), Image({"name": {"S": "c"}}), Image({"name": {"S": "a"}})]
    given = joined([tags], Image({}), {"tags": found}).referents["tags"]
    assert [each["name"] for each in given] == ["a", "c", "a"]
    with pytest.raises(HandlerError, match="reads="):
        _ = given[0]["price"]
    assert joined([tags], Image({}), {}).referents == {"tags": ()}


def test_a_whole_key_is_taken_from_one_attribute_or_from_two():
    (product,) = declared({"product": Lookup(PRODUCT, key="product_key")}).lookups
    assert referred(product, Image({"product_key": {"S": "PRODUCT#7"}}), {}, {}) == ("main", "PRODUCT#7", "META")
    assert referred(product, Image({"product_key": {"S": ""}}), {}, {}) is None
    (line,) = declared({"line": Lookup(LINE, key=("line_pk", "line_sk"))}, source=AGENT).lookups
    both = {"line_pk": {"S": "ORDER#1"}, "line_sk": {"S": "ITEM#a"}}
    assert referred(line, Image(both), {}, {}) == ("main", "ORDER#1", "ITEM#a")
    assert referred(line, Image({"line_pk": {"S": "ORDER#1"}}), {}, {}) is None
    (products,) = declared({"products": Lookup(PRODUCT, key="keys", many=True)}).lookups
    found = references(products, Image({"keys": {"L": [{"S": "PRODUCT#2"}, {"S": "PRODUCT#1"}]}}), {}, {})
    assert [each[1] for each in found] == ["PRODUCT#2", "PRODUCT#1"]


@pytest.mark.parametrize("value", [{"S": "CUSTOMER#1"}, {"S": "PRODUCT#"}, {"N": "1"}])
def test_a_whole_key_of_something_else_is_the_handler_s_error(value):
    (product,) = declared({"product": Lookup(PRODUCT, key="product_key")}).lookups
    with pytest.raises(HandlerError, match=r"takes a whole key, and that of this item is none of Key"):
        referred(product, Image({"product_key": value}), {}, {})


def test_fields_that_are_called_as_options_keep_their_meaning():
    odd = Key("ODD#{key}#{many}", "META")
    (lookup,) = declared({"odd": Lookup(odd, key="a", many="b")}).lookups
    assert (dict(lookup.taken), lookup.many, lookup.from_key) == ({"key": "a", "many": "b"}, None, False)
    assert referred(lookup, Image({"a": {"S": "1"}, "b": {"S": "2"}}), {}, {}) == ("main", "ODD#1#2", "META")


def test_the_manifest_tells_a_list_and_a_whole_key_from_a_single_reference():
    one, several, whole = (
        declared({"tags": each}).lookups[0].stored_name
        for each in (Lookup(TAG, tag="tags"), Lookup(TAG, tag="tags", many=True), Lookup(TAG, key="tags"))
    )
    assert len({one, several, whole}) == 3


@pytest.mark.parametrize(
    ("lookup", "expected"),
    [
        (Lookup(TAG, tag="tags", many="yes"), "many='yes': expected True or False"),
        (Lookup(TAG, tag="tags", many=True, optional=True), "the handler gets the referents that exist"),
        (Lookup(TAG, many=True, whole=True), "every item would refer to one referent, and has no list"),
        (Lookup(LINE, order_id="a", sku="b", many=True), "takes a, b: expected one attribute that is a list or a set"),
        (Lookup(LINE, many=True), "takes no attribute: expected one attribute"),
        (Lookup(LINE, key=("a", "b"), many=True), "expected one attribute that is a list or a set"),
        (Lookup(LINE, key="a"), "has fields of its own: expected the attributes of both"),
        (Lookup(TAG, key="a", tag="b"), "gives tag, which the whole key has"),
        (Lookup(TAG, key=7), "expected the attribute that holds the key of the referent"),
        (Lookup(TAG, key=("a", "b", "c")), "expected the attribute that holds the key of the referent"),
        (Lookup(TAG, key="_sf_a"), "expected the attribute that holds the key of the referent"),
    ],
)
def test_lists_and_whole_keys_that_cannot_be_are_refused(lookup, expected):
    assert expected in refusal({"tags": lookup})


def test_neither_a_list_through_a_referent_nor_one_through_a_list_is_taken():
    through = Lookup(Key("OWNER#{owner}", "META"), through="tags")
    assert "is a list (many=True)" in refusal({"tags": Lookup(TAG, tag="tags", many=True), "owner": through})
    several = Lookup(TAG, tag="tags", many=True, through="product")
    assert "is a list (many=True)" in refusal({"product": PRODUCT, "tags": several})


def test_a_handler_that_takes_a_list_as_one_item_is_refused():
    def tagged(line, tags: Item):
        return Row(category="a", total=Sum(1))

    assert "tags: tuple[Item, ...]" in refusal({"tags": Lookup(TAG, tag="tags", many=True)}, tagged)


def test_a_referent_is_there_without_any_attribute_of_reads():
    (product,) = declared({"product": Lookup(PRODUCT, reads=["name"])}).lookups
    assert ReferentImage(product, {"price": {"N": "3"}})


def test_the_handler_is_not_called_without_a_referent_unless_that_is_optional():
    (product,) = declared({"product": PRODUCT}).lookups
    (optional,) = declared({"product": Lookup(PRODUCT, optional=True)}).lookups
    assert joined([product], Image({}), {}) is None
    assert joined([optional], Image({}), {}).referents == {"product": None}


def test_kinds_that_see_items_as_written_see_referents_so():
    item = {"_sf_a": {"M": {"shop/x": {"SS": ["size"]}}}, "size": {"S": "large"}, "name": {"S": "n"}}
    (seen,) = declared({"product": PRODUCT}).lookups
    (written,) = declared({"product": PRODUCT}, kind="attributes").lookups
    assert dict(ReferentImage(seen, item)) == {"size": "large", "name": "n"}
    assert dict(ReferentImage(written, item)) == {"name": "n"}


def test_items_may_look_up_others_of_their_own_key_as_in_a_tree():
    lookups = {"parent": Lookup(PRODUCT, product_id="parent_id", optional=True)}
    assert declared(lookups, source=PRODUCT, kind="attributes").lookups


@pytest.mark.parametrize(
    ("lookup", "why"),
    [
        ([PRODUCT], r"has lookup=\[.*expected a Key or Lookup for each name"),
        ({}, "expected a Key or Lookup for each name"),
        ({"product": "PRODUCT"}, r"Lookup 'product' at .*: expected a Key or a Lookup"),
        ({"a product": PRODUCT}, "expected an identifier"),
        ({"sku": PRODUCT}, "has the name of the field {sku}"),
        ({"product": Lookup(PRODUCT, optional=1)}, "expected True or False"),
        ({"product": Lookup(PRODUCT, agent_id="x")}, "has no field {agent_id}: expected product_id"),
        ({"product": Lookup(PRODUCT, product_id="")}, "expected the name of an attribute"),
        ({"product": Lookup(PRODUCT, reads="name")}, r'expected the names of attributes, reads=\["name"\]'),
        ({"product": Lookup(PRODUCT, reads=["_sf_n"])}, "no name of an attribute of the application"),
        ({"product": Lookup(PRODUCT, through="x")}, "expected an earlier lookup of the handler, no lookup"),
        ({"p": PRODUCT, "s": Lookup(SUPPLIER, through="x")}, "expected an earlier lookup of the handler, 'p'"),
        ({"every": EVERY}, r"has no field: every item would refer to one referent.*whole=True"),
        ({"line": Key("ORDER#{order_id:d}", "META")}, "is of another kind: write the field the same way in both"),
        ({"product": Key("PRODUCT#{product_id}", "M", Table("other", region="eu-west-1"))}, "in region 'eu-west-1'"),
        ({f"p{n}": PRODUCT for n in range(LOOKUPS_MAX + 1)}, "11 lookups: 10 at most"),
        (
            {"a": PRODUCT, "b": Lookup(SUPPLIER, through="a"), "c": Lookup(AGENT, through="b")},
            "goes through 'b', which goes through 'a': two levels at most",
        ),
    ],
)
def test_what_cannot_be_looked_up_is_refused_with_the_remedy(lookup, why):
    with pytest.raises(DeclarationError, match=rf"(?s){why}") as refused:
        declared(lookup)
    assert __file__ in str(refused.value) or "<string>" in str(refused.value)


def test_every_item_may_refer_to_one_if_that_is_said():
    assert declared({"every": Lookup(EVERY, whole=True)}).lookups[0].taken == ()


@pytest.mark.parametrize("inline", [0, -1, True, "2", 100_001])
def test_the_number_of_visited_items_is_a_whole_number(inline):
    assert "expected a whole number from 1 to 100000" in refusal({"product": PRODUCT}, inline=inline)


def test_a_number_of_visited_items_belongs_to_lookups():
    assert "without lookup=" in refusal(None, inline=5)


def test_a_parameter_that_is_missing_is_refused_with_the_line():
    def sales(line):
        return Row(category="a", total=Sum(1))

    text = refusal({"product": PRODUCT}, sales)
    assert "looks 'product' up and has no parameter of that name; write\n    def sales(line, product):" in text


def test_a_parameter_that_takes_no_none_is_refused_where_a_referent_may_lack():
    def sales(line, product: Item):
        return Row(category=product["c"], total=Sum(1))

    text = refusal({"product": Lookup(PRODUCT, optional=True)}, sales)
    assert "None where there is no referent (optional=True); write\n    product: Item | None" in text
    assert declared({"product": PRODUCT}, sales).wants == ("product",)

    def both(line, product: "Item | None", sku):
        return Row(category="a", total=Sum(1))

    assert declared({"product": Lookup(PRODUCT, optional=True)}, both).wants == ("product", "sku")


def test_a_parameter_that_is_neither_a_lookup_nor_a_field_is_refused():
    assert "asks for 'other', which is no field" in refusal({"product": PRODUCT}, called("product", "other"))


@pytest.mark.parametrize("kind", ["on", "audit", "copy", "cascade", "archive", "feed"])
def test_kinds_whose_changes_stand_for_a_moment_take_no_lookup(kind):
    router = Router()
    options = {
        "on": {"into": SALES},
        "copy": {"to": Table("other")},
        "cascade": {"children": [LINE]},
        "archive": {"to": "file:x"},
        "feed": {"audience": AGENT, "into": SALES, "keep_days": 1},
    }.get(kind, {})
    with pytest.raises(DeclarationError, match=rf"router.{kind} takes no lookup=.*router.attributes"):
        getattr(router, kind)(LINE, lookup={"product": PRODUCT}, **options)


def test_a_handler_that_looks_up_what_comes_of_its_own_rows_is_refused():
    rows = {"row": Lookup(Key("CATEGORY#{category}", "SALES"))}
    assert "would read rows derived from its own rows" in refusal(rows)


def test_a_cycle_over_a_lookup_of_attributes_is_refused():
    router = Router()
    router.attributes(PRODUCT, lookup={"total": Lookup(SALES)})(called("total"))
    router.view(LINE, into=SALES, lookup={"product": PRODUCT}, name="other")(called("product"))
    with pytest.raises(DeclarationError, match="would read rows derived from its own rows"):
        App("shop", routers=[router])


def test_rows_that_are_spread_over_shards_cannot_be_looked_up():
    router, spread = Router(), Key("CATEGORY#{category}", "SALES#{shard:02d}")
    router.view(LINE, into=spread, shards=4)(called())
    router.view(PRODUCT, into=Key("X", "Y"), name="x", lookup={"row": Lookup(spread, whole=True)})(called("row"))
    with pytest.raises(DeclarationError, match=r"spread over several keys .*Look up a view without shards"):
        App("shop", routers=[router])


def test_rows_of_a_history_cannot_be_looked_up():
    router, rows = Router(), Key("HISTORY#{order_id}", "{version}#{sku}")
    router.audit(LINE, into=rows)
    router.view(PRODUCT, into=Key("X", "Y"), name="x", lookup={"row": rows})(called("row"))
    with pytest.raises(DeclarationError, match="a row of a history is of one change"):
        App("shop", routers=[router])


TENANT_LINE = Key("TENANT#{tenant}#ORDER#{order_id}", "ITEM#{sku}")


@pytest.mark.parametrize(
    ("lookup", "why"),
    [
        (PRODUCT, r"looks up Key.*which has no field {tenant}"),
        (Lookup(Key("TENANT#{tenant}#P#{id}", "META"), tenant="other"), "takes {tenant} from 'other'"),
        (Key("TENANT#{tenant}", "META"), r"has no field beside {tenant}.*whole=True"),
    ],
)
def test_a_lookup_stays_within_its_tenant(lookup, why):
    router = Router()
    router.view(TENANT_LINE, into=Key("TENANT#{tenant}#X", "Y"), lookup={"product": lookup})(called("product"))
    with pytest.raises(DeclarationError, match=rf"(?s){why}"):
        App("shop", routers=[router], tenant="tenant")
