"""The condition of each guarded write on the stored item, and its changes: one description for every store.

The description of a ledger write that was planned without a read, of one handler that has nothing stored yet:

    All((Either((Absent("total.v"), All((Is("total.v", "<", version), ...)))), Absent("total.u")), phrase="as before")
    Update(sets=(Attribute("total.v", version), ...), removes=("total.fence",), adds=(Attribute("r", ONE),))

``engines.requests`` renders it for DynamoDB, as an expression or as a PartiQL statement, ``engines.local_writes`` as
Python for the stores that compare items themselves, and a dry run prints what ``conditions`` finds in it.

A description holds no value of its write: a ``Value`` is an expression of the write. So all writes of one *shape* have
one description, and its renderings are cached by shape. Every attribute of the write that its description reads has to
be in the shape: otherwise a write would be sent under the guard of another one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

from streamfold.keys.table import CONTRIBUTORS, LIFE, MARKED, OWNER, PARTNER_VERSION, STAMP, STATE, VERSION, Table
from streamfold.writes import guarded

# The language


class WriteValue(NamedTuple):
    """A value of a write: an expression of ``write`` and ``expires_at``, and the DynamoDB type of its result."""

    code: str
    type: Literal["S", "N", "BOOL", "SS"]


class Exists(NamedTuple):
    """There is an item, or there is none."""

    exists: bool


class Absent(NamedTuple):
    """There is no attribute of this name, or no item."""

    name: str


class Present(NamedTuple):
    """There is an attribute of this name."""

    name: str


class Is(NamedTuple):
    """There is an attribute that compares so with a value."""

    name: str
    operator: Literal["=", "<", "<=", ">="]
    value: WriteValue


class Same(NamedTuple):
    """Each attribute in a mapping of the write is stored with its value there."""

    mapping: str


class NoneOf(NamedTuple):
    """None of the names that the write lists is an attribute of the item."""

    names: str


class Unchanged(NamedTuple):
    """The item equals the image in the write.

    An expression compares as many of its attributes as DynamoDB allows: of a larger item, a change of the others is not
    noticed there.
    """

    image: str


class All(NamedTuple):
    """All of these hold. ``phrase``: the condition in a dry run, behind "if"."""

    terms: "tuple[Term, ...]" = ()
    phrase: str = ""


class Either(NamedTuple):
    """At least one of these holds. ``phrase`` as for ``All``."""

    terms: "tuple[Term, ...]"
    phrase: str = ""


Requirement = All | Either
Term = Exists | Absent | Present | Is | Same | NoneOf | Unchanged | Requirement


class Attribute(NamedTuple):
    """An attribute that is set to a value, or that a value is added to."""

    name: str
    value: WriteValue


class AttributesOf(NamedTuple):
    """The attributes in a mapping of the write."""

    mapping: str


class NamesOf(NamedTuple):
    """The names that the write lists, or those in a mapping of it."""

    names: str


class Increment(NamedTuple):
    """A number that is raised by one; where there is none, it begins behind ``start``."""

    name: str
    start: WriteValue


class Replace(NamedTuple):
    """The item has these attributes and no others; later ones win."""

    attributes: tuple[Attribute | AttributesOf, ...]


class Update(NamedTuple):
    """Attributes of the item are set, removed, and added to; missing attributes are made. Others remain."""

    sets: tuple[Attribute | AttributesOf | Increment, ...] = ()
    removes: tuple[str | NamesOf, ...] = ()
    adds: tuple[Attribute | AttributesOf, ...] = ()  # to numbers and sets
    takes: tuple[Attribute, ...] = ()  # from sets


ItemChange = Replace | Update | Literal["Delete", "ConditionCheck"]


class Description(NamedTuple):
    """The condition of a write, and its changes."""

    guard: Requirement
    change: ItemChange
    returns_item: bool = True  # a refusal brings the item that was found, which costs DynamoDB nothing but bytes


# All writes


def _text(name: str) -> WriteValue:
    return WriteValue(f"write.{name}", "S")


def _number(name: str) -> WriteValue:
    return WriteValue(f"write.{name}", "N")


GONE, THERE, FREE = Exists(exists=False), Exists(exists=True), All()
EXPIRES = Attribute("ttl", WriteValue("expires_at", "N"))
ZERO, ONE, TRUE = WriteValue("0", "N"), WriteValue("1", "N"), WriteValue("True", "BOOL")
SET_VALUES, REMOVE_NAMES = (AttributesOf("values"),), (NamesOf("removed"),)
UNSHARED = "nobody adds to it"
COUNTED_OR_NONE = Either((GONE, Present(CONTRIBUTORS)))
"""An item without the mark of a row is the application's: what is added to it would change it, and what is taken back
from it might delete it."""
ROW_OR_NONE = Either((GONE, Present(CONTRIBUTORS), Present(OWNER)))
"""Likewise of a row that is added to, or put whole."""
WriteShape = tuple[Any, ...]
SHAPES_MAX = 2000
"""Shapes of writes whose renderings are kept."""
W = TypeVar("W")
T = TypeVar("T")

SHAPES: dict[type, Callable[[Any, Table], WriteShape]] = {}
"""The attributes of a write that its description reads, by kind."""
_DESCRIBED: dict[type, Callable[[Any, Table], Description]] = {}


def learn(known: dict[WriteShape, T], shape: WriteShape, made: T) -> T:
    """Keeps what was made for a shape. An application has a few shapes for each handler."""
    if len(known) >= SHAPES_MAX:
        known.clear()
    known[shape] = made
    return made


def shape_of(write: Any, table: Table) -> WriteShape:
    """The shape of a write: equal for all writes that have the same description."""
    kind = type(write)
    return kind, SHAPES[kind](write, table)


def described(write: Any, table: Table) -> Description:
    return _DESCRIBED[type(write)](write, table)


def conditions(write: Any) -> list[str]:
    """The conditions of a write, as a dry run prints them; those without a phrase are omitted."""
    guard = described(write, STATE).guard  # a table decides on no condition
    groups = [guard, *(term for term in guard.terms if isinstance(term, All | Either))]
    return [group.phrase for group in groups if group.phrase]


def _describes(kind: type[W], shape: Callable[[W, Table], WriteShape]) -> Callable[[Any], Any]:
    def enter(describe: Callable[[W, Table], Description]) -> Callable[[W, Table], Description]:
        _DESCRIBED[kind], SHAPES[kind] = describe, shape
        return describe

    return enter


def _describe_alike(descriptions: Mapping[type, Description]) -> None:
    for kind, description in descriptions.items():
        _DESCRIBED[kind], SHAPES[kind] = lambda *_, same=description: same, lambda *_: ()


# State items


def _ledger_shape(write: guarded.LedgerWrite, _: Table) -> WriteShape:
    return (
        tuple(
            [
                (
                    each.handler,
                    each.pending is not None,
                    bool(each.expected),
                    each.deltas and (1, each.before is None),
                    each.gone and 1,
                )
                for each in write.contributions
            ]
        ),
        write.revision and 1,
        write.live_expected and 1,
        bool(write.live),
        write.expires,
        write.fence,
    )


@_describes(guarded.LedgerWrite, _ledger_shape)
def _ledger(write: guarded.LedgerWrite, _: Table) -> Description:
    terms: list[Term] = []
    sets: list[Attribute] = []
    removes: list[str] = []
    for number, contribution in enumerate(write.contributions):
        name, stored = contribution.handler, f"contributions[{number}]"
        if write.revision is None:
            terms += _still_expected(contribution, stored)
        sets += (
            Attribute(name + ".v", _text(stored + ".version")),
            Attribute(name + ".s", _text(stored + ".contribution")),
        )
        if contribution.pending is not None:
            sets.append(Attribute(name + ".u", _text(stored + ".pending")))
        named, unnamed = _of_deltas(contribution, stored)
        sets += named
        removes += unnamed
        if write.fence:
            sets.append(Attribute(name + ".fence", TRUE))
        else:
            removes.append(name + ".fence")
    if write.live_expected is not None:
        # Handlers that this write does not know may hold something: the item must not expire under them.
        live = Is("live", "=", _number("live_expected"))
        terms.append(live if write.live_expected else Either((Absent("live"), live)))
    if write.revision is not None:
        terms.append(Is("r", "=", _number("revision")) if write.revision else Absent("r"))
    if write.expires:
        sets.append(EXPIRES)
    else:
        removes.append(EXPIRES.name)
    adds = (Attribute("r", ONE), *((Attribute("live", _number("live")),) if write.live else ()))
    return Description(All(tuple(terms), phrase="as before"), Update(tuple(sets), tuple(removes), adds))


def _of_deltas(contribution: guarded.HandlerContribution, stored: str) -> tuple[list[Attribute], list[str]]:
    """The names of a step's deltas, and what it changes: set or removed together."""
    name = contribution.handler
    if contribution.deltas is None:
        return [], []
    if not contribution.deltas:
        return [], [name + ".p", name + ".b"]
    names = Attribute(name + ".p", _text(stored + ".deltas"))
    if contribution.before is None:
        return [names], [name + ".b"]
    return [names, Attribute(name + ".b", _text(stored + ".before"))], []


def _still_expected(contribution: guarded.HandlerContribution, stored: str) -> tuple[Term, ...]:
    """The stored contribution is older, and it is the one from which the effects were computed.

    If only versions were compared, an older change could land behind a removal that was redelivered; if only
    contributions were, a late change could land behind one that was subtracted. A repair sets the fence against writes
    that were planned before it.
    """
    older = All(
        (
            Is(contribution.handler + ".v", "<", _text(stored + ".version")),
            Is(contribution.handler + ".s", "=", _text(stored + ".expected")),
            Absent(contribution.handler + ".fence"),
        )
    )
    as_expected = older if contribution.expected else Either((Absent(contribution.handler + ".v"), older))
    # A step that has not read the note of pending work would overwrite it, and nobody would finish that work.
    terms = as_expected, Absent(contribution.handler + ".u")
    if contribution.gone is None:
        return terms
    # While what the last step adds is not in the row, a withdrawal would find too few contributors, and be dropped.
    none = Absent(contribution.handler + ".p")
    gone = Is(contribution.handler + ".p", "=", _text(stored + ".gone"))
    return *terms, Either((none, gone)) if contribution.gone else none


@_describes(guarded.Claim, lambda write, _: (bool(write.rows), bool(write.deltas)))
def _claim(write: guarded.Claim, _: Table) -> Description:
    rows = (Attribute("s", _text("rows")),) if write.rows else ()
    deltas = (Attribute("p", _text("deltas")),) if write.deltas else ()
    return Description(All((GONE,), phrase="there is none"), Replace((*rows, *deltas, EXPIRES)))


@_describes(guarded.SwapText, lambda write, _: (write.expected is not None,))
def _swap_text(write: guarded.SwapText, _: Table) -> Description:
    as_read = GONE if write.expected is None else Is("s", "=", _text("expected"))
    return Description(All((as_read,), phrase="as read"), Replace((Attribute("s", _text("text")),)))


@_describes(guarded.SwapMarker, lambda write, _: (write.expected is not None,))
def _swap_marker(write: guarded.SwapMarker, _: Table) -> Description:
    as_read = GONE if write.expected is None else Is(MARKED, "=", _text("expected"))
    return Description(All((as_read,), phrase="as read"), Update((Attribute(MARKED, _text("text")),)))


@_describes(guarded.SwapState, lambda write, _: (bool(write.revision), write.expires))
def _swap_state(write: guarded.SwapState, _: Table) -> Description:
    following = Attribute("r", WriteValue("write.revision + 1", "N"))
    as_read = Is("r", "=", _number("revision")) if write.revision else GONE
    attributes = (AttributesOf("attributes"), following, *((EXPIRES,) if write.expires else ()))
    return Description(All((as_read,)), Replace(attributes))


@_describes(guarded.DeleteState, lambda write, _: (write.expected is not None,))
def _delete_state(write: guarded.DeleteState, _: Table) -> Description:
    # A note that was replaced meanwhile belongs to another process.
    same = FREE if write.expected is None else All((Is("s", "=", _text("expected")),))
    return Description(same, "Delete")


@_describes(guarded.PutStoredCopy, lambda write, _: (write.expires is not None,))
def _stored_copy(write: guarded.PutStoredCopy, _: Table) -> Description:
    expires = () if write.expires is None else (Attribute("ttl", _number("expires")),)
    attributes = (Attribute("s", _text("text")), Attribute("v", _text("version")), *expires)
    return Description(Either((GONE, Is("v", "<=", _text("version")))), Replace(attributes))


@_describes(
    guarded.CounterWrite,
    lambda write, _: (
        write.raised is not None,
        bool(write.added),
        bool(write.removed),
        None if write.references is None else bool(write.references),
        write.expires,
    ),
)
def _counter(write: guarded.CounterWrite, _: Table) -> Description:
    number = _number("number" if write.raised is None else "raised")
    refers = (Attribute("refs", _text("references")),) if write.references else ()
    change = Update(
        (Attribute("n", number), *refers, *((EXPIRES,) if write.expires else ())),
        (*(("refs",) if write.references == "" else ()), *((EXPIRES.name,) if write.expires is False else ())),
        (Attribute("ids", WriteValue("write.added", "SS")),) if write.added else (),
        (Attribute("ids", WriteValue("write.removed", "SS")),) if write.removed else (),
    )
    return Description(All((Is("n", "=", _number("number")),)), change)


@_describes(guarded.CountUp, lambda write, _: (write.expires, write.there))
def _count_up(write: guarded.CountUp, _: Table) -> Description:
    expires = (EXPIRES,) if write.expires or not write.there else ()
    # Whether the item exists decides on its time to live, unless it gets one in any case.
    known = FREE if write.expires else All((Exists(write.there),))
    return Description(known, Update((Increment("n", _number("start")), *expires)), returns_item=False)


_describe_alike(
    {
        guarded.PutState: Description(FREE, Replace((Attribute("s", _text("text")),))),
        guarded.ClearNotes: Description(All((Same("notes"),)), Update(removes=(NamesOf("notes"),)), returns_item=False),
        guarded.NoteVersion: Description(
            Either((Absent("v"), Is("v", "<", _text("version")))),
            Update((Attribute("v", _text("version")),)),
            returns_item=False,
        ),
    }
)


# Rows


@_describes(
    guarded.AddRow,
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
        write.contributors_below is not None,
    ),
)
def _add(write: guarded.AddRow, _: Table) -> Description:
    terms: list[Term] = []
    if write.unversioned:
        # The tombstone of a guarded put would hide the sum.
        terms.append(All((Absent(VERSION),), phrase="none put it"))
    if write.born:
        # A row that expired and was made again meanwhile has a life of its own: nothing is added to it unseen.
        terms.append(GONE)
    elif write.life is not None:
        terms.append(Is(LIFE, "=", _text("life")) if write.life else Absent(LIFE))
    if write.contributors_required is not None:
        terms.append(Is(CONTRIBUTORS, ">=", _number("contributors_required")))
    elif not write.born:
        terms.append(COUNTED_OR_NONE)
    if write.contributors_below is not None:
        # Once the row is corrected, it counts what is to be withdrawn from it: the withdrawal must not be dropped then.
        terms.append(Either((Absent(CONTRIBUTORS), Is(CONTRIBUTORS, "<", _number("contributors_below")))))
    sets = (
        *((Attribute(LIFE, _text("life")),) if write.born else ()),
        *((Attribute(STAMP, _text("stamp")),) if write.stamp else ()),
        *(SET_VALUES if write.values else ()),
    )
    # A row is shared once somebody adds to it, so that its owner does not put it over the sum.
    shared = () if write.unversioned or OWNER in write.removed else (OWNER,)
    adds = (
        *((AttributesOf("amounts"),) if write.amounts else ()),
        *((Attribute(CONTRIBUTORS, _number("contributors")),) if write.contributors else ()),
    )
    return Description(All(tuple(terms)), Update(sets, (*(REMOVE_NAMES if write.removed else ()), *shared), adds))


@_describes(guarded.PutRow, lambda write, _: (write.owner is not None, write.amends))
def _put(write: guarded.PutRow, _: Table) -> Description:
    own, guard = Is(OWNER, "=", _text("owner")), cast("Requirement", FREE)
    if write.owner is not None:
        # An amendment must not make an expired row again.
        guard = All((own,), UNSHARED) if write.amends else Either((GONE, own), UNSHARED)
    return Description(guard, Replace((AttributesOf("attributes"),)))


@_describes(guarded.DeleteRow, lambda write, _: (write.owner is not None,))
def _delete(write: guarded.DeleteRow, _: Table) -> Description:
    own = Either((GONE, Is(OWNER, "=", _text("owner"))), UNSHARED)
    return Description(FREE if write.owner is None else own, "Delete")


@_describes(guarded.GuardedPut, lambda write, table: (write.owner is not None, write.attributes is None, table.ttl))
def _guarded_put(write: guarded.GuardedPut, table: Table) -> Description:
    # An item without a version is a row that handlers add to, or no row at all but the application's.
    terms: tuple[Term, ...] = (Either((GONE, Is(VERSION, "<", _text("version"))), phrase="older"),)
    own: tuple[Attribute, ...] = (Attribute(VERSION, _text("version")),)
    if write.owner is not None:
        # Versions of different items do not compare.
        owner = Either((Absent(OWNER), Is(OWNER, "=", _text("owner"))), phrase="it is no other item's")
        terms, own = (*terms, owner), (*own, Attribute(OWNER, _text("owner")))
    if write.attributes is not None:
        return Description(All(terms), Replace((*own, AttributesOf("attributes"))))
    expires = (Attribute(table.ttl, EXPIRES.value),) if table.ttl else ()
    return Description(All(terms), Replace((*own, Attribute(CONTRIBUTORS, ZERO), *expires)))


@_describes(guarded.PutPostRow, lambda write, table: (write.replaces, write.attributes is None, table.ttl))
def _post_row(write: guarded.PutPostRow, table: Table) -> Description:
    first, second = _text("versions[0]"), _text("versions[1]")
    older = All((Is(VERSION, "<=", first), Is(PARTNER_VERSION, "<=", second)))
    shown = write.attributes is not None
    attributes = (
        *((AttributesOf("attributes"),) if shown else ()),
        Attribute(VERSION, first),
        Attribute(PARTNER_VERSION, second),
        Attribute(CONTRIBUTORS, ONE if shown else ZERO),
        *((Attribute(table.ttl, _number("expires")),) if table.ttl else ()),
    )
    return Description(older if write.replaces else Either((GONE, older)), Replace(attributes))


_describe_alike(
    {
        # Entries that changed since they were read have changed the stamp.
        guarded.RecomputedRow: Description(All((Is(STAMP, "=", _text("stamp")),)), Update(SET_VALUES, REMOVE_NAMES)),
        guarded.CorrectRow: Description(
            All((Same("expected"), NoneOf("absent"), ROW_OR_NONE)),
            Update(SET_VALUES, REMOVE_NAMES, (AttributesOf("amounts"),)),
        ),
        guarded.InsertItem: Description(All((GONE,)), Replace((AttributesOf("attributes"),)), returns_item=False),
        guarded.InsertRow: Description(All((GONE,)), Replace((AttributesOf("attributes"),)), returns_item=False),
        guarded.RemoveEmpty: Description(All((Is(CONTRIBUTORS, "=", ZERO),)), "Delete", returns_item=False),
        # Source items: a write of the application in the meantime wins.
        guarded.AbsentSource: Description(All((GONE,)), "ConditionCheck", returns_item=False),
        guarded.DeleteSource: Description(All((Unchanged("image"),)), "Delete", returns_item=False),
        guarded.UpdateSource: Description(
            All((THERE, Same("expected"), NoneOf("absent"))), Update(SET_VALUES, REMOVE_NAMES), returns_item=False
        ),
    }
)
