"""What each guarded write requires of the stored item, and what it makes of it: one description for every store.

The description of a ledger write that was planned without a read, of one handler that has nothing stored yet:

    All((Either((Absent("total.v"), All((Is("total.v", "<", version), ...)))), Absent("total.u")), says="as before")
    Update(sets=(Attribute("total.v", version), ...), removes=("total.fence",), adds=(Attribute("r", ONE),))

``engines.requests`` renders it for DynamoDB, as an expression or as a PartiQL statement, ``engines.local_writes`` as
Python for the stores that compare items themselves, and a dry run prints what ``conditions`` says of it.

A description holds no value of its write: a ``Value`` is an expression of the write. So all writes of one *shape* have
one description, and what is rendered from it is kept by shape. What a description asks its write for must be part of
the shape, or a write would be sent under the guard of another one.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, PARTNER_VERSION, STAMP, STATE, VERSION, Table
from streamfold.writes.guarded import (
    AbsentSource,
    AddRow,
    Claim,
    ClearNotes,
    CorrectRow,
    CounterWrite,
    CountUp,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedPut,
    InsertRow,
    LedgerPart,
    LedgerWrite,
    NoteVersion,
    PutMirror,
    PutPair,
    PutRow,
    PutState,
    RecomputedRow,
    RemoveEmpty,
    SwapState,
    UpdateSource,
)

# The language


class Value(NamedTuple):
    """A value of a write: an expression of ``write`` and ``expires_at``, and the DynamoDB type of what it gives."""

    code: str
    type: Literal["S", "N", "BOOL", "SS"]


EXPIRES = Value("expires_at", "N")
"""When writes that expire do so, in epoch seconds."""
ZERO, ONE, TRUE = Value("0", "N"), Value("1", "N"), Value("True", "BOOL")


def _text(name: str) -> Value:
    return Value(f"write.{name}", "S")


def _number(name: str) -> Value:
    return Value(f"write.{name}", "N")


class Exists(NamedTuple):
    """There is an item, or there is none."""

    there: bool


GONE, THERE = Exists(there=False), Exists(there=True)


class Absent(NamedTuple):
    """The item has no attribute of this name. So has one that is not there."""

    name: str


class Is(NamedTuple):
    """The item has an attribute that compares so with a value."""

    name: str
    operator: Literal["=", "<", "<=", ">="]
    value: Value


class Same(NamedTuple):
    """Each attribute in a mapping of the write is stored as it is there."""

    mapping: str


class NoneOf(NamedTuple):
    """None of the names that the write lists is an attribute of the item."""

    names: str


class Unchanged(NamedTuple):
    """The item is the image that the write holds.

    An expression compares as many of its attributes as DynamoDB lets it: of a larger item, a change of the others is
    not noticed there.
    """

    image: str


class All(NamedTuple):
    """All of these hold. ``says``: the condition in a dry run, behind "if"."""

    terms: "tuple[Term, ...]" = ()
    says: str = ""


class Either(NamedTuple):
    """One of these holds at least. ``says`` as for ``All``."""

    terms: "tuple[Term, ...]"
    says: str = ""


Term = Exists | Absent | Is | Same | NoneOf | Unchanged | All | Either


class Attribute(NamedTuple):
    """An attribute that is set to a value, or that a value is added to."""

    name: str
    value: Value


class Attributes(NamedTuple):
    """The attributes in a mapping of the write."""

    mapping: str


class Names(NamedTuple):
    """The names that the write lists, or those in a mapping of it."""

    names: str


class Next(NamedTuple):
    """A number that is raised by one; where there is none, it begins behind ``start``."""

    name: str
    start: Value


class Put(NamedTuple):
    """The item is these attributes alone; later ones win."""

    attributes: tuple[Attribute | Attributes, ...]


class Update(NamedTuple):
    """Attributes of the item are set, removed, and added to; what is missing is made. Others stay."""

    sets: tuple[Attribute | Attributes | Next, ...] = ()
    removes: tuple[str | Names, ...] = ()
    adds: tuple[Attribute | Attributes, ...] = ()  # to numbers and sets
    takes: tuple[Attribute, ...] = ()  # from sets


class Delete(NamedTuple):
    """The item is removed."""


class Check(NamedTuple):
    """Nothing is written."""


Change = Put | Update | Delete | Check


class Description(NamedTuple):
    """What a write requires, and what it does."""

    guard: All | Either
    change: Change
    tells: bool = True  # a refusal brings the item that was found, which costs DynamoDB nothing but bytes


FREE = All()
"""Requires nothing."""
Shape = tuple[Any, ...]
W = TypeVar("W")

SHAPES: dict[type, Callable[[Any, Table], Shape]] = {}
"""What of a write its description asks for, by kind."""
_DESCRIBED: dict[type, Callable[[Any, Table], Description]] = {}


def shape_of(write: Any, table: Table) -> Shape:
    """What decides on the description of a write: equal for all writes that have the same one."""
    kind = type(write)
    return kind, SHAPES[kind](write, table)


def described(write: Any, table: Table) -> Description:
    """The description of a write to an item of a table."""
    return _DESCRIBED[type(write)](write, table)


def conditions(write: Any) -> list[str]:
    """The conditions of a write, as a dry run prints them; one that needs no word is left out."""
    guard = described(write, STATE).guard  # a table decides on no condition
    groups = [guard, *(term for term in guard.terms if isinstance(term, All | Either))]
    return [group.says for group in groups if group.says]


def _describes(kind: type[W], shape: Callable[[W, Table], Shape] = lambda *_: ()) -> Callable[[Any], Any]:
    """Enters how the writes of a kind are described, and what of a write its description asks for."""

    def enter(describe: Callable[[W, Table], Description]) -> Callable[[W, Table], Description]:
        _DESCRIBED[kind] = describe
        SHAPES[kind] = shape
        return describe

    return enter


# State items


def _ledger_shape(write: LedgerWrite, _: Table) -> Shape:
    return (
        tuple([(part.handler, part.left is not None, bool(part.expected)) for part in write.parts]),
        write.revision and 1,
        write.live_expected and 1,
        bool(write.live),
        write.expires,
        write.fence,
    )


@_describes(LedgerWrite, _ledger_shape)
def _ledger(write: LedgerWrite, _: Table) -> Description:
    terms: list[Term] = []
    sets: list[Attribute] = []
    removes: list[str] = []
    for number, part in enumerate(write.parts):
        if write.revision is None:
            terms += _still_expected(number, part)
        sets += (
            Attribute(part.handler + ".v", _text(f"parts[{number}].version")),
            Attribute(part.handler + ".s", _text(f"parts[{number}].contribution")),
        )
        if part.left is not None:
            sets.append(Attribute(part.handler + ".u", _text(f"parts[{number}].left")))
        if write.fence:
            sets.append(Attribute(part.handler + ".fence", TRUE))
        else:
            removes.append(part.handler + ".fence")
    if write.live_expected is not None:
        # Handlers that this write does not know may hold something: the item must not expire under them.
        live = Is("live", "=", _number("live_expected"))
        terms.append(live if write.live_expected else Either((Absent("live"), live)))
    if write.revision is not None:
        terms.append(Is("r", "=", _number("revision")) if write.revision else Absent("r"))
    if write.expires:
        sets.append(Attribute("ttl", EXPIRES))
    else:
        removes.append("ttl")
    adds = (Attribute("r", ONE), *((Attribute("live", _number("live")),) if write.live else ()))
    return Description(All(tuple(terms), says="as before"), Update(tuple(sets), tuple(removes), adds))


def _still_expected(number: int, part: LedgerPart) -> tuple[Term, ...]:
    """The stored part is older, and is what the effects were computed from.

    The version alone would let an older change land behind a removal that came back; the contribution alone, one that
    lands late behind a change that was taken back. A repair sets the fence against writes that were planned before it.
    """
    older = All(
        (
            Is(part.handler + ".v", "<", _text(f"parts[{number}].version")),
            Is(part.handler + ".s", "=", _text(f"parts[{number}].expected")),
            Absent(part.handler + ".fence"),
        )
    )
    as_expected = older if part.expected else Either((Absent(part.handler + ".v"), older))
    # A step that has not read what an earlier one left behind would overwrite the note, and nobody would finish it.
    return as_expected, Absent(part.handler + ".u")


@_describes(Claim, lambda write, _: (bool(write.rows),))
def _claim(write: Claim, _: Table) -> Description:
    rows = (Attribute("s", _text("rows")),) if write.rows else ()
    return Description(All((GONE,), says="there is none"), Put((*rows, Attribute("ttl", EXPIRES))))


@_describes(SwapState, lambda write, _: (bool(write.revision), write.expires))
def _swap_state(write: SwapState, _: Table) -> Description:
    following = Attribute("r", Value("write.revision + 1", "N"))
    expires = (Attribute("ttl", EXPIRES),) if write.expires else ()
    as_read = Is("r", "=", _number("revision")) if write.revision else GONE
    return Description(All((as_read,)), Put((Attributes("attributes"), following, *expires)))


@_describes(PutState)
def _put_state(_: PutState, __: Table) -> Description:
    return Description(FREE, Put((Attribute("s", _text("text")),)))


@_describes(DeleteState, lambda write, _: (write.expected is not None,))
def _delete_state(write: DeleteState, _: Table) -> Description:
    # A note that was written anew meanwhile is another one's.
    same = FREE if write.expected is None else All((Is("s", "=", _text("expected")),))
    return Description(same, Delete())


@_describes(PutMirror, lambda write, _: (write.expires is not None,))
def _mirror(write: PutMirror, _: Table) -> Description:
    expires = () if write.expires is None else (Attribute("ttl", _number("expires")),)
    attributes = (Attribute("s", _text("text")), Attribute("v", _text("version")), *expires)
    return Description(Either((GONE, Is("v", "<=", _text("version")))), Put(attributes))


@_describes(
    CounterWrite,
    lambda write, _: (write.raised is not None, bool(write.added), bool(write.removed), write.expires),
)
def _counter(write: CounterWrite, _: Table) -> Description:
    number = _number("number" if write.raised is None else "raised")
    change = Update(
        (Attribute("n", number), *((Attribute("ttl", EXPIRES),) if write.expires else ())),
        ("ttl",) if write.expires is False else (),
        (Attribute("ids", Value("write.added", "SS")),) if write.added else (),
        (Attribute("ids", Value("write.removed", "SS")),) if write.removed else (),
    )
    return Description(All((Is("n", "=", _number("number")),)), change)


@_describes(CountUp, lambda write, _: (write.expires, write.there))
def _count_up(write: CountUp, _: Table) -> Description:
    expires = (Attribute("ttl", EXPIRES),) if write.expires or not write.there else ()
    # Whether the item is there decides on its time to live, unless it gets one in any case.
    known = FREE if write.expires else All((Exists(write.there),))
    return Description(known, Update((Next("n", _number("start")), *expires)), tells=False)


@_describes(ClearNotes)
def _clear_notes(_: ClearNotes, __: Table) -> Description:
    return Description(All((Same("notes"),)), Update(removes=(Names("notes"),)), tells=False)


@_describes(NoteVersion)
def _note_version(_: NoteVersion, __: Table) -> Description:
    version = _text("version")
    guard = Either((Absent("v"), Is("v", "<", version)))
    return Description(guard, Update((Attribute("v", version),)), tells=False)


# Rows


@_describes(
    AddRow,
    lambda write, _: (
        bool(write.amounts),
        bool(write.values),
        bool(write.removed),
        OWNER in write.removed,
        bool(write.contributors),
        bool(write.stamp),
        write.unversioned,
        write.requires_contributor or write.contributors_min is not None,  # then ``contributors_required`` is a number
        write.life and "life",
        write.born,
    ),
)
def _add(write: AddRow, _: Table) -> Description:
    terms: list[Term] = []
    if write.unversioned:
        # The tombstone of a guarded put would hide the sum.
        terms.append(All((Absent(VERSION),), says="none put it"))
    if write.born:
        # A row that expired and was made again meanwhile has a life of its own: nothing is added to it unseen.
        terms.append(GONE)
    elif write.life is not None:
        terms.append(Is(LIFE, "=", _text("life")) if write.life else Absent(LIFE))
    if write.contributors_required is not None:
        terms.append(Is(CONTRIBUTORS, ">=", _number("contributors_required")))
    sets = (
        *((Attribute(LIFE, _text("life")),) if write.born else ()),
        *((Attribute(STAMP, _text("stamp")),) if write.stamp else ()),
        *((Attributes("values"),) if write.values else ()),
    )
    # What was put whole is shared from now on, so that no whole row is put over the sum.
    shared = () if write.unversioned or OWNER in write.removed else (OWNER,)
    removes = (*((Names("removed"),) if write.removed else ()), *shared)
    adds = (
        *((Attributes("amounts"),) if write.amounts else ()),
        *((Attribute(CONTRIBUTORS, _number("contributors")),) if write.contributors else ()),
    )
    return Description(All(tuple(terms)), Update(sets, removes, adds))


@_describes(PutRow, lambda write, _: (write.owner is not None, write.amends))
def _put(write: PutRow, _: Table) -> Description:
    own = Is(OWNER, "=", _text("owner"))
    guard: All | Either = FREE
    if write.owner is not None:
        # What expired is not made again by an amendment.
        guard = All((own,), UNSHARED) if write.amends else Either((GONE, own), UNSHARED)
    return Description(guard, Put((Attributes("attributes"),)))


@_describes(DeleteRow, lambda write, _: (write.owner is not None,))
def _delete(write: DeleteRow, _: Table) -> Description:
    own = Either((GONE, Is(OWNER, "=", _text("owner"))), UNSHARED)
    return Description(FREE if write.owner is None else own, Delete())


UNSHARED = "nobody adds to it"


@_describes(GuardedPut, lambda write, table: (write.owner is not None, write.attributes is None, table.ttl))
def _guarded_put(write: GuardedPut, table: Table) -> Description:
    # A row that counts contributors and has no version is one that handlers add to.
    new = All((Absent(VERSION), Absent(CONTRIBUTORS)))
    terms: tuple[Term, ...] = (Either((new, Is(VERSION, "<", _text("version"))), says="older"),)
    own: tuple[Attribute, ...] = (Attribute(VERSION, _text("version")),)
    if write.owner is not None:
        # Versions of different items do not compare.
        owner = Either((Absent(OWNER), Is(OWNER, "=", _text("owner"))), says="it is no other item's")
        terms, own = (*terms, owner), (*own, Attribute(OWNER, _text("owner")))
    if write.attributes is not None:
        return Description(All(terms), Put((*own, Attributes("attributes"))))
    expires = (Attribute(table.ttl, EXPIRES),) if table.ttl else ()
    return Description(All(terms), Put((*own, Attribute(CONTRIBUTORS, ZERO), *expires)))


@_describes(PutPair, lambda write, table: (write.replaces, write.attributes is None, table.ttl))
def _pair(write: PutPair, table: Table) -> Description:
    first, second = _text("versions[0]"), _text("versions[1]")
    older = All((Is(VERSION, "<=", first), Is(PARTNER_VERSION, "<=", second)))
    shown = write.attributes is not None
    attributes = (
        *((Attributes("attributes"),) if shown else ()),
        Attribute(VERSION, first),
        Attribute(PARTNER_VERSION, second),
        Attribute(CONTRIBUTORS, ONE if shown else ZERO),
        *((Attribute(table.ttl, _number("expires")),) if table.ttl else ()),
    )
    return Description(older if write.replaces else Either((GONE, older)), Put(attributes))


@_describes(RecomputedRow)
def _recomputed(_: RecomputedRow, __: Table) -> Description:
    # Entries that moved since they were read have changed the stamp.
    return Description(All((Is(STAMP, "=", _text("stamp")),)), Update((Attributes("values"),), (Names("removed"),)))


@_describes(CorrectRow)
def _correct(_: CorrectRow, __: Table) -> Description:
    change = Update((Attributes("values"),), (Names("removed"),), (Attributes("amounts"),))
    return Description(All((Same("expected"), NoneOf("absent"))), change)


@_describes(InsertRow)
def _insert(_: InsertRow, __: Table) -> Description:
    return Description(All((GONE,)), Put((Attributes("attributes"),)), tells=False)


@_describes(RemoveEmpty)
def _remove_empty(_: RemoveEmpty, __: Table) -> Description:
    return Description(All((Is(CONTRIBUTORS, "=", ZERO),)), Delete(), tells=False)


# Source items


@_describes(AbsentSource)
def _absent_source(_: AbsentSource, __: Table) -> Description:
    return Description(All((GONE,)), Check(), tells=False)


@_describes(DeleteSource)
def _delete_source(_: DeleteSource, __: Table) -> Description:
    return Description(All((Unchanged("image"),)), Delete(), tells=False)


@_describes(UpdateSource)
def _update_source(_: UpdateSource, __: Table) -> Description:
    guard = All((THERE, Same("expected"), NoneOf("absent")))
    return Description(guard, Update((Attributes("values"),), (Names("removed"),)), tells=False)
