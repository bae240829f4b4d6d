"""Tenants kept apart: every key of an application has the tenant's field, and no row leaves its source's tenant."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from streamfold.errors import DeclarationError, HandlerError, shown
from streamfold.keys.key import Key
from streamfold.routes.route import Fields, Route, Target


def apart(routes: Sequence[Route], tenant: str) -> tuple[Route, ...]:
    """The routes with targets that take rows of their source's tenant only.

    Raises ``DeclarationError`` for a source or target without the field, and where it is of different kinds.
    """
    places = [(route, what, key) for route in routes for what, key in _keys(route)]
    for route, what, key in places:
        if tenant not in key.types:
            raise DeclarationError(_missing(route, what, key, tenant))
    for route, _, key in places:
        _, _, first = places[0]
        if key.types[tenant].spec != first.types[tenant].spec:
            raise DeclarationError(
                f"The tenant's field is {first.types[tenant]} in {first!r} ({first.declared_at}) and "
                f"{key.types[tenant]} in {key!r} ({key.declared_at}), which {route.name!r} ({route.declared_at}) "
                "names: values of different kinds do not compare. Write it the same way everywhere."
            )
    return tuple(
        replace(route, targets=tuple(target._replace(tenant=tenant) for target in route.targets)) for route in routes
    )


def check_tenant(target: Target, effect: Any, fields: Fields) -> None:
    """Raises ``HandlerError`` for a row that would be another tenant's than its source."""
    tenant = target.tenant
    if tenant is None or tenant not in effect.values:
        return
    field = target.key.types[tenant]
    given, own = effect.values[tenant], fields[tenant]
    if field.write(given) != field.write(own):
        raise HandlerError(
            f"{shown(effect)} gives {tenant}={shown(given)}, but its source is of tenant {shown(own)}: a row belongs "
            f"to the tenant of its source. Leave {tenant} out; it comes from the source's key."
        )


def _keys(route: Route) -> Iterator[tuple[str, Key]]:
    yield from (("reads", key) for key in route.sources)
    yield from (("writes", key) for key in route.writes)


def _missing(route: Route, what: str, key: Key, tenant: str) -> str:
    why = "whose its items are could not be told" if what == "reads" else "rows of all tenants would meet there"
    remedy = route.kind.tenant_remedy(route, tenant) if what == "writes" else f"Put {{{tenant}}} into the template."
    return (
        f"The application has tenant={tenant!r}, and {route.kind} {route.name!r} ({route.declared_at}) {what} {key!r} "
        f"({key.declared_at}), which has no field {{{tenant}}}: {why}. {remedy}"
    )
