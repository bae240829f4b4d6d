"""Tenants are kept apart: by the templates when the application is built, by values before anything is written."""

import pytest

from streamfold import Add, App, Count, Delete, Key, Put, Router, Row
from streamfold.engines import EmbeddedEngine
from streamfold.errors import DeclarationError, HandlerError
from streamfold.settings import Settings
from tests.helpers.model import stored
from tests.helpers.source import Source

ORDER = Key("{shop}#ORDER#{order_id}", "METADATA")
BY_STATUS = Key("{shop}#STATUS#{status}", "ORDER#{order_id}")
TOTAL = Key("{shop}#TOTAL", "TOTAL")
EVERYBODY = Key("TOTAL#{status}", "TOTAL")
SHARED = Key("ORDER#{order_id}", "METADATA")


def app(*yielded, kind="view", source=ORDER, into=TOTAL, **options):
    """An application with one handler that yields this, whatever comes."""
    router = Router()

    def handler(subject):
        yield from yielded

    getattr(router, kind)(source, into=into, **options)(handler)
    return App("shop", routers=[router], tenant="shop")


def refused(**declared):
    with pytest.raises(DeclarationError) as caught:
        app(**declared)
    return str(caught.value)


def failures(application):
    engine = EmbeddedEngine(application.tables.values())
    record = Source().put("a#ORDER#1", status="new")
    found = application.process([record], engine=engine, settings=Settings())
    return [failure.error for failure in found], stored(application, engine)


def test_an_application_whose_keys_all_have_the_field_is_built():
    assert app(kind="index", into=BY_STATUS).tenant == "shop"


def test_a_target_without_the_field_is_refused_with_both_declarations():
    at = app().routes[0].declared_at
    assert at.startswith(f"{__file__}:")
    assert refused(into=EVERYBODY) == (
        f"The application has tenant='shop', and view 'handler' ({at}) "
        f"writes Key('TOTAL#{{status}}', 'TOTAL') ({EVERYBODY.declared_at}), which has no field {{shop}}: rows of all "
        "tenants would meet there. Put {shop} into the template."
    )


def test_a_source_without_the_field_is_refused_with_both_declarations():
    message = refused(source=SHARED)
    assert (
        f"reads Key('ORDER#{{order_id}}', 'METADATA') ({SHARED.declared_at}), which has no field {{shop}}: the tenant "
        in (message)
    )
    assert f"view 'handler' ({__file__}:" in message


def test_an_external_handler_s_source_needs_the_field_too():
    router = Router()
    router.on(SHARED, external=True, name="mail")(lambda change: None)
    with pytest.raises(DeclarationError, match=r"external 'mail' .* reads .* which has no field \{shop\}"):
        App("shop", routers=[router], tenant="shop")


@pytest.mark.parametrize(
    ("source", "partition"),
    [(ORDER, "{shop}#AUDIT#{item:rest}"), (Key("ORDER#{shop}", "METADATA"), "AUDIT#{shop}#{item:rest}")],
)
def test_an_audit_into_the_default_target_is_refused_with_one_that_fits_the_others(source, partition):
    router = Router()
    router.audit(source)
    with pytest.raises(DeclarationError) as caught:
        App("shop", routers=[router], tenant="shop")
    assert str(caught.value).endswith(f'Give the audit a target: into=Key("{partition}", "{{version:rest}}").')


def test_that_target_works_and_its_rows_are_the_tenants():
    router = Router()
    router.audit(ORDER, into=Key("{shop}#AUDIT#{item:rest}", "{version:rest}"))
    errors, rows = failures(App("shop", routers=[router], tenant="shop"))
    assert errors == []
    ((_, partition, _),) = rows
    assert partition == "a#AUDIT#a#ORDER#1|METADATA"


def test_a_field_of_two_kinds_is_refused_with_both_places():
    other = Key("{shop:d}#TOTAL", "TOTAL")
    message = refused(into=other)
    assert message.startswith(f"The tenant's field is {{shop}} in {ORDER!r} ({ORDER.declared_at}) and {{shop:d}} in")
    assert f"({other.declared_at}), which 'handler'" in message


@pytest.mark.parametrize(
    ("kind", "effect", "into"),
    [
        ("view", Row(shop="b", orders=Count()), TOTAL),
        ("index", Row(shop="b", status="new"), BY_STATUS),
        ("on", Put(shop="b", status="new"), BY_STATUS),
        ("on", Delete(shop="b", status="new"), BY_STATUS),
        ("on", Add(shop="b", orders=1), TOTAL),
    ],
)
def test_a_row_of_another_tenant_is_refused_before_anything_is_written(kind, effect, into):
    (error,), rows = failures(app(effect, kind=kind, into=into))
    assert isinstance(error, HandlerError)
    assert str(error).endswith(
        "gives shop='b', but its source is of tenant 'a': a row belongs to the tenant of its source. Leave shop out; "
        "it comes from the source's key."
    )
    assert rows == {}


@pytest.mark.parametrize("values", [{}, {"shop": "a"}])
def test_a_row_of_the_sources_own_tenant_is_written(values):
    errors, rows = failures(app(Row(orders=Count(), **values)))
    assert errors == []
    assert rows == {("main", "a#TOTAL", "TOTAL"): {"orders": 1}}


def test_a_number_is_the_same_tenant_however_it_is_given():
    source, into = Key("{shop:03d}#ORDER", "METADATA"), Key("{shop:03d}#TOTAL", "TOTAL")
    application = app(Row(shop=7, orders=Count()), source=source, into=into)
    record = Source().put("007#ORDER")
    assert application.process([record], engine=EmbeddedEngine(application.tables.values()), settings=Settings()) == []


def test_without_tenants_a_row_may_name_any_value():
    router = Router()

    @router.view(ORDER, into=TOTAL)
    def other(order):
        yield Row(shop="b", orders=Count())

    errors, rows = failures(App("shop", routers=[router]))
    assert errors == []
    assert rows == {("main", "b#TOTAL", "TOTAL"): {"orders": 1}}
