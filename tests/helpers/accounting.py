"""Everything planned is accounted for: a plan is carried out when each change of each item is committed, found done, or
failed.

A change that is none of these is lost: its record is acknowledged, because no failure names it, and nothing is written.
Handlers are not told apart: a unit that is planned again leaves out those whose step the ledger has.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from streamfold.commit.committer import Committer
from streamfold.commit.outcome import Failed, Outcome
from streamfold.commit.pending import Progress
from streamfold.commit.plan import Plan, Transaction, Unit

Account = tuple[Any, str, str]
"""An item, and the sequence number and the version of a change; an item that is visited has neither."""


def install() -> None:
    """Has every plan of this process accounted for."""
    if not hasattr(Committer.carry_out, "__wrapped__"):
        _accounts(Progress, "commit", lambda transaction: _of_units(transaction.units))
        _accounts(Progress, "done", lambda unit: _of_units([unit]))
        _accounts(Progress, "report", _of_failures)
        Committer.carry_out = _accounting(Committer.carry_out)  # type: ignore[method-assign]


def _of_units(units: Iterable[Unit]) -> set[Account]:
    return {(unit.item, change.sequence, change.version_text) for unit in units for change in unit.changes}


def _of_failures(failures: Iterable[Failed]) -> set[Account]:
    return {(change.item, change.sequence, change.version_text) for change, _, _ in failures}


def _accounts(of: type[Progress], name: str, accounts: Callable[[Any], set[Account]]) -> None:
    """Notes what a method of a plan's progress is told."""
    method = getattr(of, name)

    @wraps(method)
    def noted(self: Any, told: Transaction | Unit | Iterable[Failed], *more: Any) -> Any:
        told = [*told] if name == "report" else told  # type: ignore[misc]
        vars(self).setdefault("accounts", set()).update(accounts(told))
        return method(self, told, *more)

    setattr(of, name, noted)


def _accounting(carry_out: Callable[[Committer, Plan], Outcome]) -> Callable[[Committer, Plan], Outcome]:
    @wraps(carry_out)
    def accounted(self: Committer, plan: Plan) -> Outcome:
        outcome = carry_out(self, plan)
        planned = _of_units(unit for transaction in plan.transactions for unit in transaction.units)
        lost = planned - vars(self.progress).get("accounts", set())
        some = sorted(map(str, lost))[:3]
        assert not lost, f"{len(lost)} of {len(planned)} changes are neither committed, done nor failed: {some}"
        return outcome

    return accounted
