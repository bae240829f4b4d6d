"""The lives of rows that expire: which contributions a row holds that was removed and made again.

A row that is added to may expire before the items that contribute to it, and be made again by items that come later. It
holds what came to it since it was made, and nothing may be taken from it that it never held. So such a row has a
*life*, a text that no other row and no row of its key had before. The ledger notes the life in which an item
contributed, and an amendment or a retraction requires it of the row.

| a step meets                          | it does                                                            |
| ------------------------------------- | ------------------------------------------------------------------ |
| no row, and its item comes to the row | makes the row, with a life that follows from the step              |
| a row, and its item comes to the row  | adds to the row on the condition that the row still has this life  |
| a row in the life that the item noted | amends the row, or takes back from it, on the same condition       |
| a row in another life, or none        | nothing: its item contributed to a row that is gone, for good      |

A life is never guessed from an older read where that decides that nothing is written: only a refusal does, because a
transaction sees the row as it is. The life of a row that a step makes follows from the step's place in the ledger,
which is reached once. So a late answer, a second delivery or a process that died makes no second row of that life.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from streamfold.keys.table import LIFE, is_in_state
from streamfold.ledger.contribution import NOTHING, Contribution, RowContribution
from streamfold.routes.route import Route, Target
from streamfold.writes.guarded import AddRow, DeleteRow, GuardedWrite, PutRow, RowKey

OVER = "-"
"""The life of a contribution that the row of its key is known not to hold. No row has this life."""
ROWS_KEPT_MAX = 10_000
"""Rows whose lives a process remembers; of a row that is forgotten the life is read again."""


Owner = Callable[[Target | None], str]
"""Gives the owner of the whole rows of a target."""


class Given(NamedTuple):
    """A step from one contribution to another, with the lives of rows."""

    stored: Contribution  # what the ledger is to hold
    before: Contribution  # the parts that their rows may hold
    after: Contribution  # the parts that their rows are to hold
    born: frozenset[RowKey]  # rows that the step makes
    plain: bool = False  # no row of the step is known to expire


NO_ROWS: frozenset[RowKey] = frozenset()


class KnownLives:
    """What a process knows of rows that expire, from batch to batch. What it forgets costs a read, nothing else."""

    __slots__ = ("rows", "targets")

    def __init__(self) -> None:
        self.rows: dict[RowKey, str] = {}  # the life that each row had when it was seen last; "" for none
        self.targets: set[str] = set()  # the places of targets of which some handler lets rows expire

    def see(self, row: RowKey, life: str | None) -> None:
        """Notes the life of a row; None: there is no row."""
        if life is None:
            self.rows.pop(row, None)
            return
        if len(self.rows) >= ROWS_KEPT_MAX:
            self.rows.clear()
        self.rows[row] = life


class Lives:
    """The lives of rows, as one batch, page or repair plans with them."""

    __slots__ = ("_born", "_following", "_known", "_over")

    def __init__(self, known: KnownLives | None = None) -> None:
        self._known = KnownLives() if known is None else known
        self._born: dict[RowKey, str] = {}  # the lives of rows that planned steps will make
        self._following: set[RowKey] = set()  # rows of steps that expire
        self._over: set[tuple[RowKey, str]] = set()  # lives, or owners of whole rows, that refusals showed to be over

    @property
    def matter(self) -> bool:
        """Whether any row is known to expire."""
        return bool(self._known.targets or self._known.rows)

    @property
    def over(self) -> int:
        """How many lives are known to be over.

        A refusal that shows one more is no try: a large step would have to learn them all again with its next delivery.
        """
        return len(self._over)

    def follows(self, target: Target | None, row: RowKey) -> bool:
        """Whether a row is one of those that expire."""
        known = self._known
        if not (known.targets or known.rows) or is_in_state(row):
            return False
        return bool(known.rows.get(row)) or (target is not None and target.key.place in known.targets)

    def counts(self, route: Route, rows: Contribution) -> bool:
        """Whether a contribution has a part of a row that expires and is added to: its ledger item has to be read."""
        return any(not part.digest and self.follows(target_of(route, row), row) for row, part in rows.items())

    def unknown(self, route: Route, rows: Contribution) -> Iterable[RowKey]:
        """Of the rows of a contribution, those whose life is to be read."""
        for row, part in rows.items():
            if not part.digest and row not in self._known.rows and self.follows(target_of(route, row), row):
                yield row

    def read(self, rows: Mapping[RowKey, Mapping[str, Any]]) -> None:
        """Takes rows as read, perhaps a little late."""
        for row, attributes in rows.items():
            self._known.see(row, attributes.get(LIFE, ""))

    def refused(self, write: GuardedWrite, found: Mapping[str, Any] | None) -> bool:
        """Takes the row that refused an addition; returns whether its life did, and not what it counts."""
        if not isinstance(write, AddRow) or write.life is None:
            return False
        life = None if found is None else str(found.get(LIFE, ""))
        if self._born.get(write.key) != life:
            self._born.pop(write.key, None)
        if life or write.life or write.contributors_min == 0:
            self._known.see(write.key, life)
        if write.born:
            return found is not None
        if life == write.life:
            return False
        if life is None and not write.life and write.key not in self._following:
            return False  # somebody removed a row that does not expire
        self._over.add((write.key, write.life))
        return True

    def expired(self, write: GuardedWrite) -> bool:
        """Takes a whole row that refused its owner's write; returns whether the row may have expired."""
        if isinstance(write, PutRow | DeleteRow) and write.amends and write.owner:
            self._over.add((write.key, write.owner))
            return True
        return False

    def committed(self, writes: Iterable[GuardedWrite]) -> None:
        """Takes the writes of a transaction that the store took."""
        for write in writes:
            if type(write) is AddRow and write.life:
                self._known.see(write.key, write.life)
                self._over.discard((write.key, write.life))  # another unit had been refused before the row was made

    def removed(self, rows: Iterable[RowKey]) -> None:
        """Takes rows that were removed because nothing contributes to them."""
        for row in rows:
            self._known.see(row, None)

    def given(
        self,
        route: Route,
        step: tuple[Contribution, Contribution],
        life: str,
        added: Collection[RowKey],
        owner: Owner,
    ) -> "Given":
        """What a step from one contribution to another comes to, with the lives of rows.

        ``life`` is that of rows that the step makes.
        """
        before, after = step
        found: Contribution = {}
        born = set()
        following = {row for row in {**before, **after} if self.follows(target_of(route, row), row)}
        self._following |= following
        for row, part in after.items():
            previous = before.get(row)
            if previous is not None:
                own = OVER if self._is_gone(row, previous, target_of(route, row), owner) else previous.life
            elif (part.digest and row not in added) or row not in following:
                own = ""
            elif row in self._known.rows:
                own = self._known.rows[row]
            else:
                own = self._born.setdefault(row, life)
                if own == life:
                    born.add(row)
            found[row] = part._replace(life=own, ordered=NOTHING if own == OVER else part.ordered) if own else part
        if self._over or any(part.life == OVER for part in before.values()):
            out = {row for row, part in before.items() if self._is_gone(row, part, target_of(route, row), owner)}
            before = {row: part for row, part in before.items() if row not in out}
            after = {row: part for row, part in found.items() if row not in out}
            return Given(found, before, after, frozenset(born))
        return Given(found, before, found, frozenset(born))

    def _is_gone(self, row: RowKey, part: RowContribution, target: Target | None, owner: Owner) -> bool:
        """Whether a part is known not to be in its row."""
        if part.life == OVER:
            return True
        return (row, owner(target) if part.digest else part.life) in self._over


def target_of(route: Route, row: RowKey) -> Target | None:
    """The target that a row is of; None if the route has given it up."""
    return route.targets[0] if len(route.targets) == 1 else route.target_of(row)


def as_stored(before: Contribution, after: Contribution) -> Contribution:
    """A contribution as it is stored where it agrees with what is stored: in the lives of that."""
    if not any(part.life for part in before.values()):
        return after
    return {
        row: part._replace(life=life, ordered=NOTHING if life == OVER else part.ordered)
        if row in before and (life := before[row].life)
        else part
        for row, part in after.items()
    }
