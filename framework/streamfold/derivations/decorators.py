"""How a decorator is called: on a router, with sources and with targets. Messages give the corrected line."""

import inspect
import linecache
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from streamfold.derivations.declarations import ItemDeclarations
from streamfold.routes.declaration import caller
from streamfold.routes.signature import place

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=ItemDeclarations)


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
    if not isinstance(router, ItemDeclarations):
        raise TypeError(f"{kind} is called on the class Router, not on a router: write router = Router().")
    if len(sources) == 1 and inspect.isroutine(handler := sources[0]):
        raise TypeError(
            f"Handler {handler.__name__} at {place(handler)} is decorated without source and target: write\n"
            f"    @router.{kind}(SOURCE, into=TARGET)"
        )
