"""The row of one post in one reader's feed: what it is made of, and when it may be written.

A row bears the version of its post and the version of its edge. It is only replaced by a pair that is not older on
either side. Where neither pair is newer, both mirrors are read again: each is at least as new as what the row holds.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from streamfold.commit.lanes import Several, in_lanes, slices
from streamfold.commit.refusals import not_its_row
from streamfold.commit.sending import send
from streamfold.derivations.feed.mirrors import EDGES, POSTS, Mirror, Mirrors, Sided
from streamfold.derivations.feed.options import options_of, post_seconds, shown_seconds
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.engines import Engine
from streamfold.errors import Contended, EngineError, HandlerError, is_fatal, shown
from streamfold.keys.table import PARTNER_VERSION, VERSION
from streamfold.records.images import Image
from streamfold.routes.aggregates import Aggregate
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.run import Run
from streamfold.writes.guarded import PutPair, Reason

if TYPE_CHECKING:
    from streamfold.writes.guarded import RowKey

ROWS_A_CALL = 25
"""Rows of one call where calls are made side by side (API Reference, BatchExecuteStatement)."""
ROUNDS_MAX = 8
"""Times that both mirrors are read again before a pair counts as contended."""
NAMES_MAX = 50
"""Names of attributes that are remembered to be taken away from rows that have them from before."""
ONE_ROW = 1, "because a feed shows a post to a reader once"


class Pair(NamedTuple):
    """A post and an edge, as they are mirrored."""

    post: Mirror
    edge: Mirror


PairFails = Callable[[Pair, Exception], None]


def is_shown(route: Route, pair: Pair) -> bool:
    """Whether both are there; in a feed that keeps rows, an edge that is gone shows what it brought."""
    return not pair.post.gone and (not pair.edge.gone or options_of(route).keeps)


def fields_of(route: Route, pair: Pair) -> Fields:
    """The fields of both keys."""
    found = [
        key.match_values(*mirror.item[1:])
        for key, mirror in zip((route.sources[0], options_of(route).audience), pair, strict=True)
    ]
    post, edge = found
    assert post is not None
    assert edge is not None
    return {**edge, **post}


def row_values(route: Route, post: Image, edge: Image, fields: Fields) -> dict[str, object] | None:
    """The attributes of a row; None if the function gives none. Raises what it raises, and ``HandlerError``."""
    effects = yielded(route, post, fields, Row, more=(edge,), most=ONE_ROW)
    if not effects:
        return None
    target = target_of(route, effects[0])
    _, values = split(target, effects[0], fields)
    table = target.key.table
    for name, value in values.items():
        if isinstance(value, Aggregate) or name == table.ttl:
            why = "when the row expires follows from the post's key" if name == table.ttl else "a row has one source"
            raise HandlerError(f"Handler {route.name!r} gave {name}={shown(value)}: {why}. Give plain values.")
    return values


def made(route: Route, pair: Pair, *, fresh: bool, names: Sequence[str] = ()) -> PutPair:
    """The write of a pair's row. Raises what the function raises, and ``HandlerError``.

    fresh: no row is expected to be there. names: attributes that a row may have from before.
    """
    fields = fields_of(route, pair)
    (into,) = route.into
    values = row_values(route, pair.post.image, pair.edge.image, fields) if is_shown(route, pair) else None
    expires = int(post_seconds(route, fields)) + shown_seconds(route, pair.post.keep_seconds)
    key = (into.table.name, *into.compose(fields))
    return PutPair(
        key,
        values,
        (pair.post.version, pair.edge.version),
        expires,
        fresh=fresh,
        replaces=options_of(route).keeps and pair.edge.gone and not pair.post.gone,
        removed=tuple(names),
    )


def names_before(route: Route, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """The attributes that rows of these pairs have; a pair on which the function raises tells none."""
    names: dict[str, None] = {}
    for pair in pairs:
        with suppress(Exception):
            if is_shown(route, pair):
                values = row_values(route, pair.post.image, pair.edge.image, fields_of(route, pair))
                names |= dict.fromkeys(values or ())
    return tuple(names)[:NAMES_MAX]


class Pairs:
    """Writes the rows of pairs of one feed."""

    def __init__(self, mirrors: Mirrors, engine: Engine, run: Run) -> None:
        self.mirrors = mirrors
        self.route = mirrors.route
        self.engine = engine
        self.run = run
        self.names: dict[str, None] = {}  # attributes of rows, as far as they were seen

    def visit(self, pairs: Sequence[Pair], fails: PairFails, *, fresh: bool, copied: int | None = None) -> int:
        """Leads the rows of pairs to what these are now, or newer; returns how many were written.

        fresh: rows are expected not to be there. copied: how many of the first pairs make a row where none is; None:
        all. ``fails`` is told of pairs whose row cannot be made. Raises ``EngineUnavailable`` and ``NotStarted``.
        """
        wanted: dict[RowKey, tuple[PutPair, Pair]] = {}
        for number, pair in enumerate(pairs):
            try:
                write = made(self.route, pair, fresh=fresh, names=tuple(self.names))
            except Exception as error:
                if is_fatal(error) or isinstance(error, EngineError):
                    raise
                fails(pair, error)
                continue
            if copied is not None and number >= copied and write.attributes is not None:
                write = write._replace(fresh=False, replaces=True)
            wanted[write.key] = write, pair
            self._remember(write)
        self._drop_absent(wanted)

        def again(key: "RowKey") -> PutPair:
            write, pair = wanted[key]
            return self._again(write, pair)

        def contended(key: "RowKey", error: Exception) -> None:
            fails(wanted[key][1], error)

        return write_rows(self.route, self.engine, self.run, [write for write, _ in wanted.values()], again, contended)

    def _drop_absent(self, wanted: "dict[RowKey, tuple[PutPair, Pair]]") -> None:
        """Leaves out rows that are only replaced and are not there: a read costs less than a refused write."""
        replacing = [key for key, (write, _) in wanted.items() if write.replaces]
        there = self.engine.read_rows(replacing) if replacing else {}
        for key in replacing:
            if key not in there:
                del wanted[key]

    def _remember(self, write: PutPair) -> None:
        for name in write.attributes or ():
            if len(self.names) < NAMES_MAX:
                self.names[name] = None

    def _again(self, write: PutPair, pair: Pair) -> PutPair:
        """The write of a row, of what both mirrors hold by now."""
        sides = [
            Sided(side, mirror.item, self.mirrors.fields_of(side, mirror.item))
            for side, mirror in zip((POSTS, EDGES), pair, strict=True)
        ]
        return made(self.route, Pair(*self.mirrors.read(sides)), fresh=False)._replace(replaces=write.replaces)


Again = Callable[["RowKey"], PutPair]
"""Makes the write of a row of what both sides are by then."""


def _raised(_: "RowKey", error: Exception) -> None:
    raise error


def write_rows(
    route: Route,
    engine: Engine,
    run: Run,
    writes: Sequence[PutPair],
    again: Again,
    fails: "Callable[[RowKey, Exception], None]" = _raised,
) -> int:
    """Writes rows by the rule of pairs, many at a time; returns how many were written.

    ``fails`` is told of rows that are contended, or none of this feed.
    """
    left = _put(engine, run, writes)
    written = len(writes) - len(left)
    alone = {write.key: write for write in writes}
    for key in left:
        try:
            written += settle(route, engine, run, alone[key], partial(again, key))
        except (Contended, HandlerError) as error:
            fails(key, error)
    return written


def _put(engine: Engine, run: Run, writes: Sequence[PutPair]) -> "list[RowKey]":
    """Writes rows in many calls side by side; returns the keys of those that are to be written alone."""
    left: list[RowKey] = []
    wrong: Exception | None = None
    parts = slices(run.lanes, writes, ROWS_A_CALL)
    calls = ((Several(write.key for write in part), partial(engine.put_pairs, part)) for part in parts)
    for _, answer in in_lanes(run.lanes, calls, stops=lambda error: isinstance(error, EngineError)):
        if isinstance(answer, Exception):
            wrong = wrong or answer
        else:
            left += answer
    if wrong is not None:
        raise wrong
    return left


def settle(route: Route, engine: Engine, run: Run, write: PutPair, again: Callable[[], PutPair]) -> bool:
    """Writes one row by the rule of pairs; False where a newer pair, or no row, is there.

    again: makes the write of what both sides are by then. Raises ``Contended`` after ``ROUNDS_MAX`` rounds.
    """
    for number in range(ROUNDS_MAX):
        if number:
            run.back_off(number - 1)
        refused = send(engine, [write], run)
        if refused is None:
            return True
        (reason,) = refused.reasons
        assert reason is not None
        if _is_done(route, write, reason):
            return False
        write = again()
    raise Contended(f"Refused {ROUNDS_MAX} times in a row, because both sides of a pair change all the time.")


def _is_done(route: Route, write: PutPair, reason: Reason) -> bool:
    """Whether the row needs no write. Raises ``HandlerError`` for a row that is none of this feed."""
    row = reason.item
    if row is None:
        return write.replaces
    if VERSION not in row or PARTNER_VERSION not in row:
        raise not_its_row(route, write, reason)
    return bool(row[VERSION] >= write.versions[0] and row[PARTNER_VERSION] >= write.versions[1])
