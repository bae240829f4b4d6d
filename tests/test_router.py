"""The decorators: what they note of a handler, and what they refuse where it stands."""

import re
from functools import partial

import pytest

from streamfold import AUDIT, Change, Count, Key, Put, Router, Row, Table
from streamfold.derivations.audit.options import recorded_of
from streamfold.derivations.external.kind import EXTERNAL
from streamfold.derivations.on.kind import filter_of
from streamfold.errors import DeclarationError

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
LOG = Key("LOG#{order_id}", "{what}")


def order_total(item, order_id):
    yield Row(lines=Count())


def logged(change: Change):
    yield Put(LOG, what="x")


def send_mail(change):
    pass


def only_route(router):
    (route,) = router.routes
    return route


def test_a_decorated_function_stays_a_plain_function():
    assert Router().view(ORDER_ITEM, into=TOTAL)(order_total) is order_total
    assert Router().on(ORDER, into=LOG)(logged) is logged
    assert Router().on(ORDER, external=True)(send_mail) is send_mail
    assert [Row(lines=Count())] == list(order_total({}, "1"))


@pytest.mark.parametrize("kind", ["view", "index"])
def test_a_ledger_handler_is_noted_with_what_it_reads_and_writes(kind):
    router = Router()
    getattr(router, kind)(ORDER_ITEM, ORDER, ORDER, into=[TOTAL, LOG], group="slow")(order_total)
    route = only_route(router)
    assert (kind, "order_total", "slow") == (route.kind.name, route.name, route.group)
    assert (route.sources, route.into) == ((ORDER_ITEM, ORDER), (TOTAL, LOG))
    assert route.wants == ("order_id",)
    assert f"{__file__}:{order_total.__code__.co_firstlineno}" == route.declared_at


def test_a_name_keeps_an_identity_when_the_function_s_name_changes():
    router = Router()
    router.view(ORDER_ITEM, into=TOTAL, name="totals")(order_total)
    assert only_route(router).name == "totals"


def test_an_on_handler_is_noted_with_its_filters():
    router = Router()
    router.on(ORDER, into=LOG, events=["REMOVE"], changed=["status"], expired=True)(logged)
    route = only_route(router)
    assert (frozenset({"REMOVE"}), frozenset({"status"}), True) == filter_of(route)


def test_an_on_handler_without_filters_takes_every_event():
    router = Router()
    router.on(ORDER, into=LOG)(logged)
    assert {"INSERT", "MODIFY", "REMOVE"} == filter_of(only_route(router)).events


def test_an_external_handler_needs_no_target():
    router = Router()
    router.on(ORDER, external=True)(send_mail)
    assert only_route(router).kind is EXTERNAL
    assert only_route(router).into == ()


def test_an_audit_goes_to_the_default_target_in_the_table_of_its_sources():
    other = Table("other")
    router = Router()
    router.audit(ORDER, ORDER_ITEM, Key("USER#{user_id}", "{x:rest}", table=other), redact=["email"])
    route = only_route(router)
    assert (AUDIT, Key("AUDIT#{item:rest}", "{version:rest}", table=other)) == route.into
    assert frozenset({"email"}) == recorded_of(route).redact
    assert re.fullmatch(r".*test_router\.py:\d+", route.declared_at)


def test_an_audit_may_go_elsewhere():
    router = Router()
    router.audit(ORDER, into=LOG, name="log")
    assert (only_route(router).name, only_route(router).into) == ("log", (LOG,))


RAW = Key("{n:number}", "{s:rest}", table=Table("raw"))
NO_SORT = Key("{id}", table=Table("plain", sort=None))


@pytest.mark.parametrize("source", [RAW, NO_SORT])
def test_an_audit_without_a_text_key_needs_a_target(source):
    message = re.escape(f"rows for {source!r} cannot go to the default target, because table {source.table.name!r} ")
    with pytest.raises(DeclarationError, match=message):
        Router().audit(source)


AT = r"^The handler at .*test_router\.py:\d+ has "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"into": ()}, AT + r"into=\(\): expected the Key, or the list of Keys, that it may write\."),
        ({"into": None}, AT + "into=None: expected the Key, or the list of Keys, that it may write"),
        ({"into": "TOTAL"}, AT + "into='TOTAL': expected the Key, or the list of Keys"),
        ({"into": [TOTAL, "LOG"]}, AT + r"into=\[Key\('ORDER#\{order_id\}', 'TOTAL'\), 'LOG'\]: expected the Key"),
        ({"into": LOG, "events": "REMOVE"}, AT + r"events='REMOVE': expected a list, events=\[\"REMOVE\"\]\."),
        ({"into": LOG, "events": []}, AT + r"events=\[\]: expected some of INSERT, MODIFY, REMOVE\."),
        ({"into": LOG, "events": ["DELETE"]}, AT + r"events=\['DELETE'\]: expected some of INSERT, MODIFY, REMOVE\."),
        ({"into": LOG, "changed": "status"}, AT + r"changed='status': expected a list, changed=\[\"status\"\]\."),
        ({"into": LOG, "expired": True, "events": ["INSERT"]}, AT + "expired=True and events without REMOVE"),
        ({"into": LOG, "name": "1st"}, "Handler '1st' at .* has name='1st': expected a letter, then letters, digits"),
        ({"into": LOG, "group": 3}, "Handler 'logged' at .* has group=3: expected a letter, then letters"),
        ({"into": LOG, "name": 3}, "Handler 3 at .* has name=3: expected a letter, then letters"),
        ({"into": LOG, "changed": 5}, AT + r"changed=5: expected a list of names, as text\."),
        ({"into": LOG, "changed": ["a", 5]}, AT + r"changed=\['a', 5\]: expected a list of names, as text\."),
        ({"into": LOG, "group": ""}, "Handler 'logged' at .* has group='': expected a letter, then letters"),
        ({"into": LOG, "name": "n" * 65}, f"has name='{'n' * 65}': expected .* 64 characters at most"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_the_place(options, message):
    with pytest.raises(DeclarationError, match=message):
        Router().on(ORDER, **options)(logged)


def test_an_external_handler_with_a_target_is_refused():
    with pytest.raises(DeclarationError, match=AT + r"into=.* and external=True: an external handler writes no rows"):
        Router().on(ORDER, into=LOG, external=True)(send_mail)


@pytest.mark.parametrize("sources", [(), ("ORDER",), (ORDER, [ORDER_ITEM])])
@pytest.mark.parametrize("kind", ["view", "index", "on"])
def test_sources_that_are_no_keys_are_refused_with_the_form(kind, sources):
    message = f"{kind} at .*: expected one or several Keys, @router.{kind}\\(ORDER, ...\\)"
    with pytest.raises(DeclarationError, match=message):
        getattr(Router(), kind)(*sources, into=TOTAL)(order_total if kind != "on" else logged)


def test_a_list_of_sources_is_refused_with_the_form():
    with pytest.raises(DeclarationError, match=r"\(ORDER, \.\.\.\)\. Keys of a list: \(\*KEYS, \.\.\.\)\.$"):
        Router().view([ORDER, ORDER_ITEM], into=TOTAL)(order_total)


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ((), {}, r"^audit at .*:\d+ has the sources \(\): expected one or several Keys, router.audit\(ORDER, ...\)"),
        (("ORDER",), {}, r"^audit at .*:\d+ has the sources \('ORDER',\): expected one or several Keys"),
        ((ORDER,), {"redact": "email"}, r"^audit at .* has redact='email': expected a list of names, \[\"email\"\]"),
        ((ORDER,), {"into": "LOG"}, "^The handler at .* has into='LOG': expected the Key"),
        ((ORDER,), {"into": [LOG, TOTAL]}, r"^audit at .* has into=\[.*\]: expected one Key"),
    ],
)
def test_an_audit_that_cannot_be_is_refused_with_the_place(sources, options, message):
    with pytest.raises(DeclarationError, match=message):
        Router().audit(*sources, **options)


def test_a_function_without_a_name_needs_one():
    router = Router()
    with pytest.raises(DeclarationError, match="has name='': expected a letter"):
        router.on(ORDER, into=LOG)(partial(logged))
    router.on(ORDER, into=LOG, name="logged")(partial(logged))
    assert only_route(router).name == "logged"


DECORATORS = [Router().view(ORDER, into=TOTAL), Router().index(ORDER, into=TOTAL), Router().on(ORDER, into=LOG)]


@pytest.mark.parametrize(("kind", "handler"), [("view", order_total), ("index", order_total), ("on", logged)])
def test_a_decorator_without_parentheses_is_a_type_error_with_the_corrected_line(kind, handler):
    router = Router()
    with pytest.raises(TypeError) as caught:
        getattr(router, kind)(handler)
    assert f"Handler {handler.__name__} at {__file__}:" in str(caught.value)
    assert str(caught.value).endswith(f"write\n    @router.{kind}(SOURCE, into=TARGET)")
    assert router.routes == []


def test_a_decorator_without_a_target_is_a_type_error_with_the_corrected_line():
    router = Router()
    with pytest.raises(TypeError, match=rf"^view at {re.escape(__file__)}:\d+ has no into=, the Key or Keys") as caught:

        @router.view(ORDER, name="total")
        def order_total(item):
            yield Row()

    assert str(caught.value).endswith('write\n    @router.view(ORDER, name="total", into=TARGET)')


@pytest.mark.parametrize("kind", ["view", "index"])
def test_a_call_without_a_target_shows_the_sources_themselves(kind):
    with pytest.raises(TypeError) as caught:
        getattr(Router(), kind)(ORDER, ORDER_ITEM)
    assert str(caught.value).endswith(f"\n    @router.{kind}({ORDER!r}, {ORDER_ITEM!r}, into=TARGET)")


def test_a_handler_that_gives_nothing_is_refused_by_every_decorator():
    for decorator in DECORATORS:
        with pytest.raises(DeclarationError, match="never returns or yields"):
            decorator(send_mail)


def test_an_unknown_parameter_is_refused_by_every_decorator():
    def handler(item, colour):
        yield Row()

    for decorator in DECORATORS:
        with pytest.raises(DeclarationError, match="asks for 'colour', which is no field of"):
            decorator(handler)


@pytest.mark.parametrize("kind", ["view", "index", "on"])
def test_a_class_in_the_place_of_a_router_is_refused_with_the_line_to_write(kind):
    with pytest.raises(TypeError, match=rf"{kind} is called on the class Router, not .* write router = Router\(\)\."):
        getattr(Router, kind)(ORDER, into=TOTAL)


@pytest.mark.parametrize("kind", ["view", "index", "on", "attributes", "audit", "copy", "cascade", "archive"])
def test_an_option_that_there_is_not_is_a_type_error(kind):
    given = {"copy": {"to": Table("copies")}, "cascade": {"children": [ORDER_ITEM]}, "archive": {"to": "file:kept"}}
    with pytest.raises(TypeError, match=rf"router\.{kind} got an unexpected keyword argument 'nmae': .* name, group"):
        getattr(Router(), kind)(ORDER, **given.get(kind, {"into": LOG} if kind != "attributes" else {}), nmae="x")
