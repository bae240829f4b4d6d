"""Mutants of rows that expire: the lives that keep what a row held before from what it holds since."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from streamfold.batch import manifest
from streamfold.commit import after_commit
from streamfold.ledger import contribution, difference, step
from streamfold.ledger.lives import KnownLives, Lives
from streamfold.writes.guarded import AddRow
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

EXPIRE = "tests/commit/test_rows_that_expire_aws.py::"


@mutant(
    "an addition ignores the life of its row",
    None,
    tests=EXPIRE + "test_the_removal_of_an_item_that_came_before_changes_nothing",
)
def _() -> Iterator[None]:
    def in_any_life(takes: Any) -> Any:
        return lambda write, row: takes(write._replace(life=None, born=False), row)

    with on_writes(AddRow, guard=in_any_life):
        yield


@mutant(
    "all rows of a key have one life",
    None,
    tests=EXPIRE + "test_an_amendment_of_an_item_that_came_before_changes_nothing",
)
def _() -> Iterator[None]:
    with patch.object(step, "_life", lambda *_: "0" * 16):
        yield


@mutant(
    "an item does not note the life of its row",
    None,
    tests=EXPIRE + "test_the_removal_of_an_item_that_came_before_changes_nothing",
)
def _() -> Iterator[None]:
    given = Lives.given

    def forgetful(self: Lives, *arguments: Any) -> Any:
        found = given(self, *arguments)
        return found._replace(stored={row: part._replace(life="") for row, part in found.stored.items()})

    with patch.object(Lives, "given", forgetful):
        yield


@mutant(
    "an addition makes a row that expired, in the life of before",
    None,
    tests=EXPIRE + "test_an_amendment_does_not_make_a_row_that_expired",
)
def _() -> Iterator[None]:
    def born(does: Any) -> Any:
        def add(write: AddRow, before: Any, *more: Any) -> Any:
            again = not before and bool(write.life)
            return does(write._replace(born=True, contributors_min=None) if again else write, before, *more)

        return add

    with on_writes(AddRow, guard=born, made=born):
        yield


@mutant(
    "entries of a row that expired count in the next one",
    None,
    tests=EXPIRE + "test_claims_of_before_do_not_win_a_unique_row_that_expired",
)
def _() -> Iterator[None]:
    partition = contribution.partition

    def of_any_life(application: str, handler: str, name: str, row: Any, life: str = "") -> str:
        return partition(application, handler, name, row)

    with patch.object(contribution, "partition", of_any_life):
        yield


@mutant(
    "a row is recomputed from the entries of another life",
    None,
    tests=EXPIRE + "test_what_a_process_left_of_a_row_that_expired_is_not_shown_by_the_next_one",
)
def _() -> Iterator[None]:
    concerns = after_commit._concerns

    def in_any_life(row: Any, moved: Any) -> bool:
        return concerns({**row, "_sf_l": moved.life}, moved)

    with patch.object(after_commit, "_concerns", in_any_life):
        yield


@mutant(
    "what a process left to be recomputed is looked for in no life",
    None,
    tests=EXPIRE + "test_what_a_process_left_to_be_recomputed_is_finished_in_the_life_of_the_row",
)
def _() -> Iterator[None]:
    with patch.object(step, "as_stored", lambda before, after: after):
        yield


@mutant(
    "a process learns only from its own handlers that rows expire",
    None,
    tests=EXPIRE + "test_a_process_whose_code_lets_no_row_expire_keeps_to_the_lives_of_others",
)
def _() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(manifest, "_learn_expiring", lambda *_: None))
        yield


@mutant(
    "a whole row that expired is put again by an amendment",
    None,
    tests=EXPIRE + "test_an_amendment_does_not_put_a_whole_row_again_that_expired",
)
def _() -> Iterator[None]:
    in_lives = difference.in_lives

    def unguarded(writes: Any, route: Any, given: Any, lives: Lives) -> None:
        in_lives(writes, route, given, lives)
        for place, write in enumerate(writes):
            writes[place] = write if isinstance(write, AddRow) else write._replace(amends=False)

    with patch.object(step, "in_lives", unguarded):
        yield


@mutant(
    "a process trusts the life that it remembers",
    None,
    tests=EXPIRE + "test_a_process_learns_the_newer_life_of_a_row",
)
def _() -> Iterator[None]:
    see = KnownLives.see

    def first_seen(self: KnownLives, row: Any, life: str | None) -> None:
        if row not in self.rows:
            see(self, row, life)

    with patch.object(KnownLives, "see", first_seen):
        yield
