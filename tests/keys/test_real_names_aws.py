"""Tables that would be one are refused: by their variable, by their real name, by that of the state."""

import pytest

from streamfold import App, Count, Key, Router, Row, Table
from streamfold.engines import DynamoEngine
from streamfold.errors import DeclarationError, SettingsError
from streamfold.lambda_entry.function import Function
from streamfold.ledger.contribution import LedgerItem
from streamfold.records.envelope import Origins
from streamfold.settings import Settings
from tests.helpers.records import item, record

ORDERS, TOTALS = Table("orders"), Table("totals")


def shop(*tables):
    router = Router()
    for number, table in enumerate(tables):

        @router.view(Key("ORDER#{order_id}", "METADATA", table=table), into=Key("ALL", f"{number}"), name=f"v{number}")
        def count(item):
            yield Row(orders=Count())

    return App("shop", routers=[router])


@pytest.mark.parametrize("names", [("orders-eu", "orders_eu"), ("Users", "users"), ("a.b", "a-b")])
def test_two_tables_that_one_variable_would_name_are_refused(names):
    with pytest.raises(DeclarationError) as refused:
        shop(*map(Table, names))
    assert str(refused.value).startswith(f"Tables {names[0]!r} and {names[1]!r} would both be named by the setting ")


@pytest.mark.parametrize("tables", [{"orders": "real", "totals": "real"}, {"orders": "totals"}])
def test_two_tables_with_one_real_name_are_refused(tables):
    app, settings = shop(ORDERS, TOTALS), Settings(tables=tables, observe="off")
    with pytest.raises(SettingsError, match=r"Tables 'orders' and 'totals' are both '(real|totals)'"):
        Origins(app.source_tables, settings)
    with pytest.raises(SettingsError, match="expected one declared table for each"):
        Function(app, settings, client=object())


def test_a_target_that_is_really_the_table_of_a_source_is_refused_before_anything_is_read():
    settings = Settings(tables={"main": "real", "orders": "real"}, observe="off")
    function = Function(shop(ORDERS), settings, client=object())
    with pytest.raises(SettingsError, match="Tables 'orders' and 'main' are both 'real'"):
        function({"Records": [record(None, item("ORDER#1"), table="real")]}, None)


def test_a_state_table_that_is_the_application_s_own_is_refused():
    settings = Settings(tables={"orders": "real"}, state_table="real", observe="off")
    function = Function(shop(ORDERS), settings, client=object())
    with pytest.raises(SettingsError, match="Table 'orders' and the state table are both 'real'"):
        function({"Records": [record(None, item("ORDER#1"), table="real")]}, None)


def test_tables_of_one_name_in_two_regions_are_two():
    copies = Table("copies", region="eu-west-1")
    DynamoEngine(object(), {"orders": (ORDERS, "real"), "copies": (copies, "real")}, "state")


def test_parts_of_handlers_whose_names_have_dots_are_told_apart():
    names = ["x", "x.v", "x.s", "x.u", "x.fence", "live", "live.s", "a.v.s"]
    attributes = {f"{name}{end}": f"{name}{end}" for name in names for end in (".v", ".s", ".u")}
    assert len(attributes) == 3 * len(names)
    found = LedgerItem.of({**attributes, "x.fence": True, "r": 1, "live": 2})
    assert {name: (part.version, part.text, part.pending) for name, part in found.contributions.items()} == {
        name: (f"{name}.v", f"{name}.s", f"{name}.u") for name in names
    }
