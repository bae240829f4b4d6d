"""Lookups: the items that an item refers to by key, *referents*, whose attributes its handler gets beside it.

A reference is composed of the fields of the item's key and of its attributes. An item without one of them refers to
nothing.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from streamfold.errors import DeclarationError, HandlerError, KeyValueError, reason, shown
from streamfold.keys.key import Key
from streamfold.records.change import ItemKey
from streamfold.records.images import Image, hidden, without_derived
from streamfold.records.values import RawImage, same

INLINE = 2_000
"""Items that the changes of a batch visit before their records are acknowledged: about a second."""
INLINE_MAX = 100_000
LOOKUPS_MAX = 10
"""Referents of one item: their backlinks are deleted in the transaction of its step, which has 100 actions."""
LOOKUP = "lookup "
"""Begins the manifest's text of a lookup; a table's name has no space."""
NOTHING: Mapping[str, Any] = {}
NESTED = re.compile(r"[.\[]")
"""Separates the steps of a path, as expressions of DynamoDB write it: ``ref.id``, ``refs[0]``."""


class Lookup:
    """A lookup of a handler: the items of a key, ``Lookup(PRODUCT)``.

    The fields of the key come from the source's key by their names, or are attributes of the item of these names;
    ``agent_id="assigned_to"`` takes another one. ``optional``: the handler is called without a referent too, with None.
    ``reads`` are the attributes that the handler reads: changes of others cost nothing. ``through`` names an earlier
    lookup of the handler whose referent, instead of the item, gives the key. ``whole``: every item refers to
    the same referent. See ``streamfold docs lookups``.
    """

    __slots__ = ("fields", "key", "optional", "reads", "through", "whole")

    def __init__(
        self,
        key: Key,
        /,
        *,
        optional: bool = False,
        reads: Collection[str] | None = None,
        through: str | None = None,
        whole: bool = False,
        **fields: str,
    ) -> None:
        self.key: Key = key
        self.optional: bool = optional
        self.reads: Collection[str] | None = reads
        self.through: str | None = through
        self.whole: bool = whole
        self.fields: dict[str, str] = fields


Lookups = Mapping[str, Key | Lookup]
"""The lookups of a handler, by the names of its parameters."""
GivenLookups = tuple[Lookups | None, int]
"""The options ``lookup`` and ``inline`` of a declaration."""
NO_LOOKUPS: GivenLookups = (None, INLINE)


class DeclaredLookup(NamedTuple):
    """A lookup of a handler, checked."""

    name: str
    key: Key
    optional: bool
    reads: frozenset[str] | None  # None: all attributes
    through: "DeclaredLookup | None"
    taken: tuple[tuple[str, str], ...]  # each field of the key, and the name of what it is taken from
    needed: frozenset[str] = frozenset()  # attributes that lookups through this one compose their keys of
    derived: bool = False  # attributes that are derived onto the referent are seen
    whole: bool = False  # that many items refer to one referent is meant

    @property
    def stored_name(self) -> str:
        """The manifest's text: the key, and the origins of its fields."""
        taken = " ".join(f"{field}={name}" for field, name in self.taken)
        through = f" through {self.through.name}" if self.through else ""
        return f"{LOOKUP}{self.name}{through}: {self.key.stored_name}, {taken}"

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return repr(self.name)

    def agrees(self, one: Image, other: Image) -> bool:
        """Whether two images of the referent are alike to the handler."""
        wanted = None if self.reads is None else self.reads | self.needed
        return alike_in(*(seen_attributes(each, wanted, derived=self.derived) for each in (one, other)))


def seen_attributes(image: Image, wanted: Collection[str] | None, *, derived: bool) -> RawImage | None:
    """The attributes of an item whose changes count for a handler that reads the item; None where there is none.

    wanted: None for all attributes. derived: attributes that are derived onto the item are seen.
    """
    if not image:
        return None
    raw = image.raw if derived else without_derived(image.raw)
    return {name: value for name, value in raw.items() if not hidden(name) and (wanted is None or name in wanted)}


def alike_in(one: RawImage | None, other: RawImage | None) -> bool:
    """Whether the seen attributes of two images are equal. An absent item never agrees with one that has none."""
    return one is None and other is None if one is None or other is None else same({"M": one}, {"M": other})


class SeenItem(Protocol):
    """How a handler sees an item that it reads beside its own."""

    @property
    def reads(self) -> frozenset[str] | None: ...
    @property
    def derived(self) -> bool: ...
    @property
    def shown(self) -> str: ...


class ReferentImage(Image):
    """A referent as its handler gets it: only the attributes of ``reads`` can be read."""

    __slots__ = ("_seen",)

    def __init__(self, seen: SeenItem, raw: RawImage) -> None:
        raw = raw if seen.derived else without_derived(raw)
        super().__init__(raw if seen.reads is None else {each: raw[each] for each in seen.reads if each in raw})
        self._seen = seen

    def __getitem__(self, name: str) -> Any:
        self._check(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._check(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._check(str(name))
        return super().__contains__(name)

    def __bool__(self) -> bool:
        """The referent exists, even if it has no attribute of ``reads``."""
        return True

    def _check(self, name: str) -> None:
        # A change of such an attribute reaches no item: rows made of it would be stale for ever.
        reads = self._seen.reads
        if reads is not None and name not in reads:
            listed = ", ".join(f'"{each}"' for each in sorted({*reads, name}))
            raise HandlerError(
                f"The handler reads {shown(name)} of {self._seen.shown}, which reads= does not list: changes of it "
                f"would not be noticed. Write reads=[{listed}]."
            )


class JoinedImage(Image):
    """An item with its referents, by the names of the lookups; None for one that is not there."""

    __slots__ = ("referents",)

    def __init__(self, raw: RawImage, referents: Mapping[str, Image | None], plain: Image | None = None) -> None:
        super().__init__(raw)
        self.referents: Mapping[str, Image | None] = referents
        if plain is not None:
            self.share_decoded(plain)  # an object of the item is made once, also for handlers without lookups

    def replaced(self, raw: RawImage) -> "JoinedImage":
        """The image with other attributes of the item."""
        return JoinedImage(raw, self.referents)


def joined(lookups: Sequence[DeclaredLookup], image: Image, found: Mapping[str, Image]) -> JoinedImage | None:
    """An item with what it refers to, by the names of lookups; None where a referent lacks that is not optional."""
    if any(not each.optional and not found.get(each.name) for each in lookups):
        return None
    referents = {
        each.name: ReferentImage(each, found[each.name].raw) if found.get(each.name) else None for each in lookups
    }
    return JoinedImage(image.raw, referents, image)


def at_time(image: Image, name: str, now: Any) -> JoinedImage:
    """An item with the time beside its referents, under the name of the parameter that asks for it."""
    known = image.referents if isinstance(image, JoinedImage) else NOTHING
    return JoinedImage(image.raw, {**known, name: now}, image)


def referred(
    lookup: DeclaredLookup, image: Image, fields: Mapping[str, Any], referents: Mapping[str, tuple[ItemKey, Image]]
) -> ItemKey | None:
    """The item that a lookup refers to; None if an item refers to nothing.

    ``referents`` are those found by lookups before, with their keys. Raises ``HandlerError`` for a value that the key
    does not take.
    """
    if lookup.through is not None:
        if lookup.through.name not in referents:
            return None
        item, image = referents[lookup.through.name]
        if not image:
            return None
        fields = lookup.through.key.match_values(*item[1:]) or NOTHING
    if not lookup.derived:
        image = Image(without_derived(image.raw))
    values: dict[str, Any] = {}
    for field, name in lookup.taken:
        value = fields[name] if name in fields else image.get(name)
        if value is None or value in ("", b""):
            if not name.isidentifier():
                _check_nested(lookup, field, name, image)
            return None
        values[field] = value
    try:
        return (lookup.key.table.name, *lookup.key.compose(values))
    except KeyValueError as error:
        raise HandlerError(f"Lookup {lookup.name!r} makes no key of {lookup.key!r}: {reason(error)}") from None


def _check_nested(lookup: DeclaredLookup, field: str, name: str, image: Image) -> None:
    """Refuses the path of a nested value, such as ``ref.id``: as the name of an attribute, no item would have it."""
    head = NESTED.split(name)[0]
    if head != name and name not in image and isinstance(image.get(head), Mapping | list):
        raise HandlerError(
            f"Lookup {lookup.name!r} takes {{{field}}} from attribute {shown(name)}, and {shown(head)} of the item is "
            f"a map or a list: a lookup reads attributes of the item, not values inside of them. Write the id into an "
            f'attribute of its own, and name it: {field}="{field}_id".'
        )


def checked_lookups(given: Any, inline: Any, sources: Sequence[Key], at: str, *, derived: bool) -> "DeclaredLookups":
    """The lookups of a handler. Raises ``DeclarationError``, with the remedy, for what cannot be."""
    if isinstance(inline, bool) or not isinstance(inline, int) or not 1 <= inline <= INLINE_MAX:
        raise DeclarationError(
            f"The handler at {at} has inline={inline!r}: expected a whole number from 1 to {INLINE_MAX}, the items "
            "that changes of referents visit before their records are acknowledged."
        )
    if given is None:
        if inline != INLINE:
            raise DeclarationError(f"The handler at {at} has inline={inline} without lookup=, which it belongs to.")
        return DeclaredLookups((), inline)
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given):
        raise DeclarationError(
            f'The handler at {at} has lookup={given!r}: expected a Key or Lookup for each name, lookup={{"product": '
            "PRODUCT}."
        )
    if len(given) > LOOKUPS_MAX:
        raise DeclarationError(
            f"The handler at {at} has {len(given)} lookups: {LOOKUPS_MAX} at most. Spread them over several handlers."
        )
    found: dict[str, DeclaredLookup] = {}
    for name, each in given.items():
        lookup = Lookup(each) if isinstance(each, Key) else each
        found[name] = _checked(_Location(at, name), lookup, sources, found, derived=derived)
    needs = {name: frozenset(_needed(name, found)) for name in found}
    complete = {name: each._replace(needed=needs[name]) for name, each in found.items()}
    return DeclaredLookups(
        tuple(
            each._replace(through=complete[each.through.name]) if each.through else each for each in complete.values()
        ),
        inline,
    )


class DeclaredLookups(NamedTuple):
    """The lookups of a handler, and how many items a batch visits itself."""

    lookups: tuple[DeclaredLookup, ...]
    inline: int


def _needed(name: str, found: Mapping[str, DeclaredLookup]) -> Iterator[str]:
    for each in found.values():
        if each.through is not None and each.through.name == name:
            yield from (taken for _, taken in each.taken if taken not in each.through.key.types)


class _Location(NamedTuple):
    """The location of a lookup, for messages."""

    at: str
    name: str

    def refuse(self, why: str) -> NoReturn:
        raise DeclarationError(f"Lookup {self.name!r} at {self.at} {why}")


def _checked(
    location: _Location, lookup: Any, sources: Sequence[Key], before: Mapping[str, DeclaredLookup], *, derived: bool
) -> DeclaredLookup:
    name = location.name
    if not isinstance(lookup, Lookup) or not isinstance(lookup.key, Key):
        location.refuse(f'is {lookup!r}: expected a Key or a Lookup, lookup={{"{name}": Lookup(PRODUCT)}}.')
    key = lookup.key
    if not name.isidentifier():
        location.refuse("is no name of a parameter: expected an identifier, as the handler's parameter has it.")
    for source in sources:
        if name in source.types:
            location.refuse(
                f"has the name of the field {{{name}}} of {source!r}, which the handler may ask for: give it another."
            )
    for option in ("optional", "whole"):
        if type(given := getattr(lookup, option)) is not bool:
            location.refuse(f"has {option}={given!r}: expected True or False.")
    through = _through(location, lookup, before)
    taken = _taken(location, lookup, (through.key,) if through else sources)
    if key.table.region is not None:
        location.refuse(
            f"is of {key!r}, whose table is in region {key.table.region!r}: referents are read where the rows are "
            "written. Keep a copy of them there, router.copy(...), and look that up."
        )
    if not taken and not lookup.whole:
        location.refuse(
            f"is of {key!r}, which has no field: every item would refer to one referent, and each of its changes "
            f"visit them all. If that is meant, write whole=True: Lookup({key!r}, whole=True)."
        )
    return DeclaredLookup(
        name, key, lookup.optional, _reads(location, lookup.reads), through, taken, derived=derived, whole=lookup.whole
    )


def _through(location: _Location, lookup: Lookup, before: Mapping[str, DeclaredLookup]) -> DeclaredLookup | None:
    if lookup.through is None:
        return None
    if (through := before.get(lookup.through)) is None:
        earlier = " or ".join(map(repr, before)) or "no lookup, because it is the first"
        location.refuse(f"has through={lookup.through!r}: expected an earlier lookup of the handler, {earlier}.")
    if through.through is not None:
        location.refuse(
            f"goes through {through.name!r}, which goes through {through.through.name!r}: two levels at most. Derive "
            "the attribute onto the item in between, router.attributes(..., lookup=...), and look that up."
        )
    return through


def _taken(location: _Location, lookup: Lookup, bases: Sequence[Key]) -> tuple[tuple[str, str], ...]:
    key = lookup.key
    given: Mapping[str, Any] = lookup.fields
    for field, name in given.items():
        if field not in key.types:
            location.refuse(
                f"gives {field}={name!r}, and {key!r} has no field {{{field}}}: expected "
                f"{' or '.join(key.fields) or 'none, it has no field'}."
            )
        if not isinstance(name, str) or not name or hidden(name):
            location.refuse(f"gives {field}={name!r}: expected the name of an attribute, {field}='assigned_to'.")
    taken = tuple((field, lookup.fields.get(field, field)) for field in key.fields)
    for field, name in taken:
        for base in bases:
            if name in base.types and base.types[name].spec != key.types[field].spec:
                location.refuse(
                    f"takes {key.types[field]} of {key!r} from {base.types[name]} of {base!r}, which is of another "
                    f"kind: write the field the same way in both, or take an attribute, {field}='...'."
                )
    return taken


def _reads(location: _Location, reads: Any) -> frozenset[str] | None:
    if reads is None:
        return None
    if isinstance(reads, str) or not isinstance(reads, Collection) or not all(isinstance(each, str) for each in reads):
        location.refuse(f'has reads={reads!r}: expected the names of attributes, reads=["name"].')
    for each in reads:
        if not each or hidden(each):
            location.refuse(f"has {each!r} in reads=, which is no name of an attribute of the application.")
    return frozenset(reads)
