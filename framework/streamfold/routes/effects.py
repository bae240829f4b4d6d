"""The closed set of effects that a handler may return or yield. They are values: a test compares them with literals."""

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from streamfold.errors import HandlerError, redacted, shown
from streamfold.keys.key import Key
from streamfold.routes.aggregates import Moment


class GivenEffect:
    """A target and values: names of the target's template fill its key, all others are attributes.

    Fields that are missing come from the source's key. ``attributes`` is for attributes whose names collide with
    fields.
    """

    __slots__ = ("attributes", "target", "values")

    def __init__(
        self, target: Key | None = None, /, *, attributes: Mapping[str, Any] | None = None, **values: Any
    ) -> None:
        name = type(self).__name__
        if target is not None and not isinstance(target, Key):
            raise HandlerError(
                f"{name}({shown(target)}, ...): the first argument is the target Key; attributes are given by name."
            )
        if attributes is not None and not _is_mapping_of_names(attributes):
            raise HandlerError(f"{name}(attributes={shown(attributes)}): expected a mapping of names to values.")
        self.target: Key | None = target
        self.values: dict[str, Any] = values
        self.attributes: Mapping[str, Any] | None = attributes

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self), self.target, frozenset(self.values)))

    def _content(self) -> tuple[Any, ...]:
        return self.target, self.values, self.attributes

    def __repr__(self) -> str:
        parts = [repr(self.target)] if self.target is not None else []
        parts += [f"{name}={value!r}" for name, value in self.values.items()]
        parts += [f"attributes={dict(self.attributes)!r}"] if self.attributes else []
        return f"{type(self).__name__}({', '.join(parts)})"


def _is_mapping_of_names(attributes: object) -> bool:
    return isinstance(attributes, Mapping) and all(isinstance(name, str) for name in attributes)


class Row(GivenEffect):
    """A row that a ``view`` or ``index`` keeps for its source item, as long as the function gives it.

    ``wins``: of several sources of a row, the source with the largest ``wins`` (a number, text, bytes, date or time)
    gives the plain attributes. Ties are broken by the smallest source key.
    """

    __slots__ = ("wins",)

    def __init__(
        self,
        target: Key | None = None,
        /,
        *,
        attributes: Mapping[str, Any] | None = None,
        wins: Moment | None = None,
        **values: Any,
    ) -> None:
        if target is None and attributes is None:  # as nearly always
            self.target: Key | None = None
            self.attributes: Mapping[str, Any] | None = None
            self.values: dict[str, Any] = values
        else:
            super().__init__(target, attributes=attributes, **values)
        self.wins: Moment | None = wins

    def _content(self) -> tuple[Any, ...]:
        return (*super()._content(), self.wins)

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self.wins is None else f"{text[:-1]}{', ' if text[-2] != '(' else ''}wins={self.wins!r})"


class Put(GivenEffect):
    """An ``on`` handler's write of a whole row, guarded by the change's version: an older change never overwrites."""

    __slots__ = ()


class Add(GivenEffect):
    """An ``on`` handler's addition to numbers of a row, once per change: ``Add(SIGN_INS, day=day, total=1)``."""

    __slots__ = ()


class Delete(GivenEffect):
    """An ``on`` handler's removal of a row, guarded by the change's version."""

    __slots__ = ()


def each_effect(name: str, given: Any, expected: Sequence[type] = ()) -> Iterable[Any]:
    """The effects that handler ``name`` gave, one by one: it may return an effect, a list or tuple of effects, or None,
    or yield.

    Raises ``HandlerError`` for any other return value. ``expected`` are the effects that it may give.
    """
    if type(given) is GeneratorType:  # nearly always; a check against an abstract class costs ten times as much
        return given
    if given is None:
        return ()
    if isinstance(given, GivenEffect):
        return (given,)
    if isinstance(given, (list, tuple, Iterator)):
        return given
    names = [each.__name__ for each in expected or (Row,)]
    line = f"return {names[0]}(...)"
    if isinstance(given, Mapping) and all(isinstance(key, str) and key.isidentifier() for key in given):
        line = f"return {names[0]}({', '.join(f'{redacted(key)}={shown(value)}' for key, value in given.items())})"
    if isinstance(given, Coroutine):
        given.close()  # or Python warns of a coroutine that nobody awaited
        line = f"def {name}(item):"
    raise HandlerError(
        f"Handler {name!r} returned {shown(given)} of type {type(given).__name__}: expected {', '.join(names)}, "
        f"a list of them, or None. Write\n    {line}"
    )
