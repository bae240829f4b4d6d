"""What decorators share: how they are called, and the routes that they add. Messages give the corrected line."""

import inspect
import linecache
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from streamfold.derivations.derivation import Derivation
from streamfold.errors import DeclarationError
from streamfold.keys.table import is_name
from streamfold.routes.declaration import CommonOptions, Keys, Made, caller, check_options, declared_route
from streamfold.routes.route import Route
from streamfold.routes.signature import check_handler, check_plain, place

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Declarations")


class Declarations:
    """Collects the routes of a ``Router``."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def _decorator(
        self,
        name: str,
        kind: Derivation,
        sources: Keys,
        common: CommonOptions,
        made: Made,
        *,
        beside: Callable[[Route], Sequence[Route]] = lambda _: (),
    ) -> Callable[[T], T]:
        """A decorator that adds the route of its handler, and further routes ``beside`` it."""
        check_options(name, common)

        def declare(handler: Any) -> Any:
            check_plain(handler) if kind.outside else check_handler(handler, name)
            route = declared_route(name, kind, sources, common, made, place(handler), handler)
            self._add(route, *beside(route))
            return handler

        return declare

    def _add(self, *routes: Route) -> None:
        for route in routes:
            for what, value in (("name", route.name), ("group", route.group)):
                if not is_name(value):
                    raise DeclarationError(
                        f"Handler {route.name!r} at {route.declared_at} has {what}={value!r}: expected a letter, then "
                        "letters, digits, '_', '-' or '.', 64 characters at most."
                    )
            self.routes.append(route)


def with_targets(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """A decorator's method that says with the corrected line that targets are missing, as Python's own words do not."""

    @wraps(method)
    def checked(router: R, /, *sources: P.args, **options: P.kwargs) -> T:
        check_call(router, method.__name__, sources)
        if "into" not in options:
            at = caller(1)
            file, _, number = at.rpartition(":")
            line = linecache.getline(file, int(number)).strip()
            if not (line.startswith("@") and line.endswith(")")):
                line = f"@router.{method.__name__}({', '.join(map(repr, sources))})"
            raise TypeError(
                f"{method.__name__} at {at} has no into=, the Key or Keys that the handler may write: write\n"
                f"    {line[:-1]}, into=TARGET)"
            )
        return method(router, *sources, **options)

    return checked


def check_call(router: object, kind: str, sources: tuple[object, ...]) -> None:
    """Refuses a decorator of the class, ``router = Router``, which would take its first source for the router, and
    ``@router.view`` for ``@router.view(...)``, which would take the handler for a source.
    """
    if not isinstance(router, Declarations):
        raise TypeError(f"{kind} is called on the class Router, not on a router: write router = Router().")
    if len(sources) == 1 and inspect.isroutine(handler := sources[0]):
        raise TypeError(
            f"Handler {handler.__name__} at {place(handler)} is decorated without source and target: write\n"
            f"    @router.{kind}(SOURCE, into=TARGET)"
        )
