"""The lives of rows that expire: which contributions a row holds that was removed and made again.

A row of contributions may expire before the items that contribute to it, and be made again by later items. The new row
has only the contributions since it was made, so nothing else may be subtracted from it. Therefore such a row has a
*life*, a text that no other row and no earlier row of its key had. The ledger notes the life in which an item
contributed, and an amendment or a retraction requires the row to have this life.

| a step meets                          | it does                                                            |
| ------------------------------------- | ------------------------------------------------------------------ |
| no row, and its item comes to the row | makes the row, with a life that follows from the step              |
| a row, and its item comes to the row  | adds to the row on the condition that the row still has this life  |
| a row in the life that the item noted | amends the row, or takes back from it, on the same condition       |
| a row in another life, or none        | nothing: its item contributed to a row that is gone for good       |

An older read of a life never decides that nothing is written: only a refusal does, because a transaction sees the
present row. The life of a row that a step makes follows from the step's revision in the ledger, which is reached once.
So a late response, a second delivery or a process that died makes no second row of that life.
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
"""Rows whose lives a process remembers, to bound its memory; the life of another row is read again."""


Owner = Callable[[Target | None], str]
"""Gives the owner of the rows of a replacing target."""


class Given(NamedTuple):
    """A step from one contribution to another, with the lives of rows."""

    stored: Contribution  # the contribution for the ledger
    before: Contribution  # the contributions that their rows may have
    after: Contribution  # the contributions that their rows are to have
    born: frozenset[RowKey]  # rows that the step makes
    plain: bool = False  # no row of the step is known to expire


NO_ROWS: frozenset[RowKey] = frozenset()


class KnownLives:
    """A process's knowledge of rows that expire, from batch to batch. Lost knowledge costs a read, nothing else."""

    __slots__ = ("rows", "targets")

    def __init__(self) -> None:
        self.rows: dict[RowKey, str] = {}  # the life that each row had when it was seen last; "" for none
        self.targets: set[str] = set()  # targets (``Key.stored_name``) in which some handler lets rows expire

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
        self._over: set[tuple[RowKey, str]] = (
            set()
        )  # lives, or owners of replaced rows, that refusals showed to be over

    @property
    def matter(self) -> bool:
        """Whether any row is known to expire."""
        return bool(self._known.targets or self._known.rows)

    @property
    def over(self) -> int:
        """How many lives are known to be over.

        A refusal that shows one more life to be over does not count as a try. Otherwise a large step would run out of
        tries, and would have to learn all of these lives again with its next delivery.
        """
        return len(self._over)

    def follows(self, target: Target | None, row: RowKey) -> bool:
        """Whether a row is one of those that expire."""
        known = self._known
        if not (known.targets or known.rows) or is_in_state(row):
            return False
        return bool(known.rows.get(row)) or (target is not None and target.key.stored_name in known.targets)

    def counts(self, route: Route, rows: Contribution) -> bool:
        """Whether a contribution has an addition to a row that expires: its ledger item has to be read."""
        return any(
            not contribution.digest and self.follows(target_of(route, row), row) for row, contribution in rows.items()
        )

    def unknown(self, route: Route, rows: Contribution) -> Iterable[RowKey]:
        """The rows of a contribution whose life has to be read."""
        for row, contribution in rows.items():
            if not contribution.digest and row not in self._known.rows and self.follows(target_of(route, row), row):
                yield row

    def read(self, rows: Mapping[RowKey, Mapping[str, Any]]) -> None:
        """Takes rows as read, perhaps a little late."""
        for row, attributes in rows.items():
            self._known.see(row, attributes.get(LIFE, ""))

    def refused(self, write: GuardedWrite, found: Mapping[str, Any] | None) -> bool:
        """Takes the row that refused an addition; returns whether its life was the reason, and not its count."""
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
        """Takes a replaced row that refused its owner's write; returns whether the row may have expired."""
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
        """A step from one contribution to another, with the lives of rows applied.

        ``life`` is the life of rows that the step makes.
        """
        before, after = step
        gone: Collection[RowKey] = ()
        if self._over or any(contribution.life == OVER for contribution in before.values()):
            gone = {row for row, each in before.items() if self._is_gone(row, each, target_of(route, row), owner)}
        following = {row for row in {**before, **after} if self.follows(target_of(route, row), row)}
        self._following |= following
        stored: Contribution = {}
        born = set()
        for row, contribution in after.items():
            if row in before:
                own = OVER if row in gone else before[row].life
            elif row in following and (row in added or not contribution.digest):
                own = self._known.rows[row] if row in self._known.rows else self._born.setdefault(row, life)
                if own == life and row not in self._known.rows:
                    born.add(row)
            else:
                own = ""
            stored[row] = _in_life(contribution, own)
        if not gone:
            return Given(stored, before, stored, frozenset(born))
        before, after = ({row: each for row, each in rows.items() if row not in gone} for rows in (before, stored))
        return Given(stored, before, after, frozenset(born))

    def _is_gone(self, row: RowKey, contribution: RowContribution, target: Target | None, owner: Owner) -> bool:
        """Whether a contribution is known to be missing in its row."""
        if contribution.life == OVER:
            return True
        return (row, owner(target) if contribution.digest else contribution.life) in self._over


def _in_life(contribution: RowContribution, life: str) -> RowContribution:
    if not life:
        return contribution
    return contribution._replace(life=life, ordered=NOTHING if life == OVER else contribution.ordered)


def target_of(route: Route, row: RowKey) -> Target | None:
    """The target of a row; None if the route has it no longer."""
    return route.targets[0] if len(route.targets) == 1 else route.target_of(row)


def as_stored(before: Contribution, after: Contribution) -> Contribution:
    """A contribution with the lives of the stored contribution, where both agree."""
    if not any(contribution.life for contribution in before.values()):
        return after
    return {row: _in_life(each, before[row].life if row in before else "") for row, each in after.items()}
