"""Lookups: the items that an item refers to by key, *referents*, whose attributes its handler gets beside it.

A reference is composed of the fields of the item's key and of its attributes. An item without one of them refers to
nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from streamfold.errors import DeclarationError, HandlerError, KeyValueError, reason, shown
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyComponent
from streamfold.records.change import ItemKey
from streamfold.records.images import Image, hidden, without_derived
from streamfold.records.values import RawImage, same

INLINE = 2_000
"""Items that the changes of a batch visit before their records are acknowledged: about a second."""
INLINE_MAX = 100_000
LOOKUPS_MAX = 10
"""Lookups of one handler. ``REFERENCES_MAX`` bounds what an item refers to through them."""
LOOKUP = "lookup "
"""Begins the manifest's text of a lookup; a table's name has no space."""
REFERENCES_MAX = 40
"""Items that one item refers to, through all lookups of a handler: a step that leaves them all deletes their backlinks
in its one transaction, which has 100 actions, beside what it writes.
"""
KEY = "key"
"""In place of a field where an attribute holds a whole key."""
ReferentsByName = Mapping[str, Sequence[tuple[ItemKey, Image]]]
"""Referents with their keys, by the names of lookups."""
NOTHING: Mapping[str, Any] = {}
MANY, WHOLE_KEY = "many", KEY
"""Options that are fields of a key whose template has fields of these names."""


class Lookup:
    """A lookup of a handler: the items of a key, ``Lookup(PRODUCT)``.

    The fields of the key come from the source's key by their names, or are attributes of the item of these names;
    ``agent_id="assigned_to"`` takes another one, ``agent_id="assigned.id"`` one in a map. ``many``: the attribute is a
    list or a set, and the handler gets a tuple of the referents that exist. ``key``: an attribute holds the referent's
    whole key, or two attributes its partition key and sort key. ``optional``: the handler is called without a referent
    too, with None. ``reads`` are the attributes that the handler reads: changes of others cost nothing. ``through``
    names an earlier lookup of the handler whose referent, instead of the item, gives the key. ``whole``: every item
    refers to the same referent. See ``streamfold docs lookups``.
    """

    __slots__ = ("fields", "from_key", "key", "many", "optional", "reads", "through", "whole")

    def __init__(
        self,
        key: Key,
        /,
        *,
        optional: bool = False,
        reads: Collection[str] | None = None,
        through: str | None = None,
        whole: bool = False,
        many: bool | str = False,
        **fields: str | tuple[str, str],
    ) -> None:
        own: Collection[str] = getattr(key, "types", ())
        if MANY in own and isinstance(many, str):  # a field of the key's template, as it was before the option
            fields, many = {MANY: many, **fields}, False
        self.from_key: Any = fields.pop(WHOLE_KEY) if WHOLE_KEY in fields and WHOLE_KEY not in own else None
        self.many: bool | str = many
        self.key: Key = key
        self.optional: bool = optional
        self.reads: Collection[str] | None = reads
        self.through: str | None = through
        self.whole: bool = whole
        self.fields: dict[str, Any] = fields


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
    many: str | None = None  # the attribute that is a list or a set of references
    from_key: bool = False  # ``taken`` are the attributes of whole keys

    @property
    def is_inner(self) -> bool:
        """Whether the handler is not called for an item without a referent."""
        return not self.optional and self.many is None

    @property
    def nothing(self) -> tuple[Image, ...] | None:
        """What the handler gets for an item that refers to nothing."""
        return None if self.many is None else ()

    @property
    def stored_name(self) -> str:
        """The manifest's text: the key, and the origins of its fields."""
        taken = " ".join(f"{field}={name}" for field, name in self.taken)
        taken += f" many {self.many}" if self.many is not None else ""
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
    """An item with its referents, by the names of the lookups: None for one that is not there, a tuple of several."""

    __slots__ = ("referents",)

    def __init__(self, raw: RawImage, referents: "GivenReferents", plain: Image | None = None) -> None:
        super().__init__(raw)
        self.referents: GivenReferents = referents
        if plain is not None:
            self.share_decoded(plain)  # an object of the item is made once, also for handlers without lookups

    def beside(self, more: Mapping[str, Any]) -> "JoinedImage":
        """The image with more beside its referents."""
        return JoinedImage(self.raw, {**self.referents, **more}, self)

    def replaced(self, raw: RawImage) -> "JoinedImage":
        """The image with other attributes of the item."""
        return JoinedImage(raw, self.referents)


GivenReferents = Mapping[str, Image | tuple[Image, ...] | None]


def at_time(image: Image, name: str, now: Any) -> JoinedImage:
    """An item with the time beside its referents, under the name of the parameter that asks for it."""
    return image.beside({name: now}) if isinstance(image, JoinedImage) else JoinedImage(image.raw, {name: now}, image)


def joined(lookups: Sequence[DeclaredLookup], image: Image, found: Mapping[str, Sequence[Image]]) -> JoinedImage | None:
    """An item with what it refers to, by the names of lookups; None where a referent lacks that is not optional.

    ``found``: the referents in the order of their references, empty images of those that do not exist.
    """
    referents: dict[str, Image | tuple[Image, ...] | None] = {}
    for each in lookups:
        images = tuple(ReferentImage(each, one.raw) for one in found.get(each.name, ()) if one)
        if each.is_inner and not images:
            return None
        referents[each.name] = images if each.many is not None else next(iter(images), None)
    return JoinedImage(image.raw, referents, image)


def head(name: str) -> str:
    """The attribute that a path begins with: ``ref`` of ``ref.id``."""
    return name.partition(".")[0]


def references(
    lookup: DeclaredLookup, image: Image, fields: Mapping[str, Any], referents: ReferentsByName
) -> tuple[ItemKey, ...]:
    """The items that a lookup refers to, in the order of their references; empty if an item refers to nothing.

    ``referents`` are those of lookups before. Raises ``HandlerError`` for a value that the key does not take.
    """
    if lookup.through is not None:
        found = referents.get(lookup.through.name)
        if not found or not found[0][1]:
            return ()
        item, image = found[0]
        fields = lookup.through.key.match_values(*item[1:]) or NOTHING
    if not lookup.derived:
        image = Image(without_derived(image.raw))
    values = {name: _value(lookup, name, image, fields) for _, name in lookup.taken}
    if lookup.many is None:
        several: Sequence[Mapping[str, Any]] = [values]
    else:
        several = [{**values, lookup.many: each} for each in _elements(lookup, values[lookup.many])]
    return tuple(key for each in several if (key := _composed(lookup, each)) is not None)


def check_count(handler: str, count: int) -> None:
    """Raises ``HandlerError`` for an item that refers to more others than a transaction can leave."""
    if count > REFERENCES_MAX:
        raise HandlerError(
            f"An item refers to {count} others through the lookups of {handler!r}: {REFERENCES_MAX} at most, because "
            "the step that leaves them deletes a backlink of each in one transaction. Keep longer lists as items of "
            "their own, one a reference, and look up from each."
        )


def _value(lookup: DeclaredLookup, name: str, image: Image, fields: Mapping[str, Any]) -> Any:
    """A field of the item's key, an attribute of this name, or else the value at this path in maps."""
    if name in fields:
        return fields[name]
    if name in image:
        return image[name]
    before, bracket, _ = name.partition("[")
    if bracket and isinstance(image.get(head(before)), Mapping | list | tuple):
        raise HandlerError(
            f"Lookup {lookup.name!r} takes {shown(name)}, and {shown(head(before))} of the item is a map or a list: a "
            "path names values in maps, ref.id. All elements of a list are taken with many=True."
        )
    value: Any = image
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _elements(lookup: DeclaredLookup, value: Any) -> Iterator[Any]:
    """The references of a list in its order, of a set by value; without empty ones."""
    if value is None:
        return
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if not isinstance(value, list | tuple):
        raise HandlerError(
            f"Lookup {lookup.name!r} has many=True and takes {shown(lookup.many)}, which is of type "
            f"{type(value).__name__} in this item: expected a list or a set of references. Without many=True, "
            f"{lookup.name!r} is the one item that a value refers to."
        )
    yield from (each for each in value if not _is_nothing(each))


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str | bytes) and not value)


def _composed(lookup: DeclaredLookup, values: Mapping[str, Any]) -> ItemKey | None:
    if any(map(_is_nothing, values.values())):
        return None
    if lookup.from_key:
        return _whole(lookup, [values[name] for _, name in lookup.taken])
    given = {field: values[name] for field, name in lookup.taken}
    try:
        return (lookup.key.table.name, *lookup.key.compose(given))
    except KeyValueError as error:
        raise HandlerError(f"Lookup {lookup.name!r} makes no key of {lookup.key!r}: {reason(error)}") from None


def _whole(lookup: DeclaredLookup, texts: Sequence[Any]) -> ItemKey:
    """The item of a whole key, from its partition key alone or from both."""
    key, (partition, *rest) = lookup.key, texts
    sort = rest[0] if rest else None
    found = key.partition.match(partition)
    if found is not None and key.sort is not None and not rest:
        sort = key.sort.constant or key.sort.compose(found)
    if found is None or key.match_values(partition, sort) is None:
        raise HandlerError(
            f"Lookup {lookup.name!r} takes a whole key, and that of this item is none of {key!r}: expected a value "
            "that its template matches."
        )
    return key.table.name, partition, sort


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
            yield from (head(taken) for _, taken in each.taken if taken not in each.through.key.types)


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
    bases = (through.key,) if through else sources
    from_key = lookup.from_key is not None
    taken = _whole_key(location, lookup) if from_key else _taken(location, lookup, bases)
    many = _many(location, lookup, taken, bases)
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
    own = (name, key, lookup.optional, _reads(location, lookup.reads), through, taken)
    return DeclaredLookup(*own, derived=derived, whole=lookup.whole, many=many, from_key=from_key)


def _through(location: _Location, lookup: Lookup, before: Mapping[str, DeclaredLookup]) -> DeclaredLookup | None:
    if lookup.through is None:
        return None
    if (through := before.get(lookup.through)) is None:
        earlier = " or ".join(map(repr, before)) or "no lookup, because it is the first"
        location.refuse(f"has through={lookup.through!r}: expected an earlier lookup of the handler, {earlier}.")
    if through.many is not None or lookup.many:
        location.refuse(
            f"goes through {through.name!r}, and one of the two is a list (many=True). Derive the attribute onto the "
            "item in between, router.attributes(..., lookup=...), and look that up."
        )
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


def _whole_key(location: _Location, lookup: Lookup) -> tuple[tuple[str, str], ...]:
    """The attributes of whole keys, each with ``KEY`` in place of a field."""
    key, given = lookup.key, lookup.from_key
    names = given if isinstance(given, tuple) else (given,)
    if not 1 <= len(names) <= len(key.table.attributes) or not all(
        isinstance(each, str) and _is_name(each) for each in names
    ):
        location.refuse(
            f"has key={given!r}: expected the attribute that holds the key of the referent, key='product_key', or "
            "those of its partition key and sort key, key=('product_pk', 'product_sk')."
        )
    if lookup.fields:
        location.refuse(f"has key={given!r} and gives {', '.join(lookup.fields)}, which the whole key has.")
    if key.sort is not None and len(names) == 1 and not _fields(key.sort) <= _fields(key.partition):
        location.refuse(
            f"has key={given!r}, and the sort key of {key!r} has fields of its own: expected the attributes of both, "
            "key=('product_pk', 'product_sk')."
        )
    return tuple((KEY, each) for each in names)


def _fields(component: KeyComponent) -> set[str]:
    return {field.name for field in component.fields}


def _is_name(name: str) -> bool:
    return bool(name) and not hidden(head(name))


def _many(location: _Location, lookup: Lookup, taken: tuple[tuple[str, str], ...], bases: Sequence[Key]) -> str | None:
    """The attribute that is a list or a set; None of a lookup of one referent."""
    if lookup.many is False:
        return None
    if lookup.many is not True:
        location.refuse(f"has many={lookup.many!r}: expected True or False.")
    if lookup.optional:
        location.refuse(
            "has many=True and optional=True: the handler gets the referents that exist, none if there are none."
        )
    if lookup.whole:
        location.refuse("has many=True and whole=True: every item would refer to one referent, and has no list.")
    names = [name for field, name in taken if not any(name in base.types for base in bases)]
    named = [name for field, name in taken if field in lookup.fields and name in names]
    found = named if len(names) > 1 else names
    if len(found) != 1 or (lookup.from_key is not None and len(taken) > 1):
        location.refuse(
            f"has many=True, and takes {', '.join(names) or 'no attribute'}: expected one attribute that is a list "
            "or a set; name it, Lookup(TAG, tag='tags', many=True)."
        )
    return found[0]


def _reads(location: _Location, reads: Any) -> frozenset[str] | None:
    if reads is None:
        return None
    if isinstance(reads, str) or not isinstance(reads, Collection) or not all(isinstance(each, str) for each in reads):
        location.refuse(f'has reads={reads!r}: expected the names of attributes, reads=["name"].')
    for each in reads:
        if not each or hidden(each):
            location.refuse(f"has {each!r} in reads=, which is no name of an attribute of the application.")
    return frozenset(reads)
