"""The application: routers joined and checked as a whole."""

import re
from types import SimpleNamespace

import pytest

from streamfold import App, Count, Key, Router, Row, Table
from streamfold.errors import DeclarationError

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTAL = Key("TOTAL#{day}", "X")
ALL = Key("ALL", "X")
ARCHIVE = Table("archive", partition="id", sort=None)


def count(item):
    yield Row(n=Count())


def router_of(*sources, into=TOTAL, name="count"):
    router = Router()
    router.view(*sources, into=into, name=name)(count)
    return router


def test_routers_and_modules_that_hold_one_are_joined_in_order():
    module = SimpleNamespace(router=router_of(TOTAL, into=ALL, name="second"))
    app = App("shop", routers=[router_of(ORDER), module])
    assert [route.name for route in app.routes] == ["count", "second"]
    assert repr(app) == "App('shop', 2 handlers)"


@pytest.mark.parametrize("router", [SimpleNamespace(), "shop", None, SimpleNamespace(router=5)])
def test_what_is_no_router_is_refused_with_what_was_expected(router):
    message = re.escape(f"routers= holds {router!r}: expected a Router, or a module that has one named 'router'.")
    with pytest.raises(DeclarationError, match=message):
        App("shop", routers=[router])


@pytest.mark.parametrize("routers", [Router(), SimpleNamespace(router=Router()), "shop", 5, None])
def test_routers_that_are_no_list_are_refused_with_the_form(routers):
    message = re.escape(
        f"routers={routers!r}: expected a list of Routers, or of modules that have one named 'router', "
    )
    with pytest.raises(DeclarationError, match=message + re.escape("routers=[...].")):
        App("shop", routers=routers)


@pytest.mark.parametrize("name", ["", "1shop", "a#b", "x" * 65, 5, None])
def test_a_name_that_cannot_be_part_of_a_key_is_refused(name):
    with pytest.raises(DeclarationError, match=f"Application name {name!r} cannot be used: expected a letter"):
        App(name, routers=[])


def test_declarations_of_different_routers_are_checked_together():
    with pytest.raises(DeclarationError, match="Two handlers are named 'count'"):
        App("shop", routers=[router_of(ORDER), router_of(TOTAL, into=ALL)])


def test_a_retired_name_is_not_used_again():
    with pytest.raises(DeclarationError, match="Handler 'count' is retired and declared: a retired name is not used"):
        App("shop", routers=[router_of(ORDER)], retired=["count"])


@pytest.mark.parametrize(
    ("retired", "message"),
    [
        ("count", "retired='count': expected a list of names, [\"count\"]."),
        (5, "retired=5: expected names of handlers, as text."),
        (["count", 5], "retired=['count', 5]: expected names of handlers, as text."),
    ],
)
def test_retired_names_that_are_no_list_of_names_are_refused_with_the_form(retired, message):
    with pytest.raises(DeclarationError, match=re.escape(message)):
        App("shop", routers=[], retired=retired)


def test_an_application_knows_its_tables_and_those_that_it_reads():
    app = App("shop", routers=[router_of(ORDER, into=Key("TOTAL#{day}", table=ARCHIVE))])
    assert {"main", "archive"} == set(app.tables)
    assert {"main"} == set(app.source_tables)


def test_an_application_without_handlers_has_the_table_of_keys_that_name_none():
    app = App("shop", routers=[])
    assert {"main"} == set(app.tables) == set(app.source_tables)


def test_a_row_of_a_declared_target_is_derived():
    app = App("shop", routers=[router_of(ORDER)])
    assert app.derived(("main", "TOTAL#2026-03-01", "X"))
    assert not app.derived(("main", "ORDER#1", "METADATA"))


def test_rows_that_a_route_reads_make_a_chain():
    app = App("shop", routers=[router_of(ORDER), router_of(TOTAL, into=ALL, name="all")])
    assert app.chains(("main", "TOTAL#2026-03-01", "X"))
    assert not app.chains(("main", "ALL", "X"))
    assert frozenset({"all"}) == app.chained


def test_sources_and_targets_are_known_for_near_misses():
    app = App("shop", routers=[router_of(ORDER)])
    assert [entry.key for entry in app.known("main").candidates("ORDER#1", "METADATA")] == [ORDER]
    assert [entry.key for entry in app.known("main").candidates("TOTAL#1", "X")] == [TOTAL]
