"""What a dry run counts of its plans."""

from dataclasses import dataclass

from streamfold.commit.plan import Plan
from streamfold.writes.guarded import AddRow


@dataclass(slots=True)
class PlannedWrites:
    """The writes of plans, and what else would follow them: how many writes that makes, the store decides."""

    transactions: int = 0
    writes: int = 0
    writes_behind: int = 0  # of these, behind the transactions
    made_of_entries: int = 0  # rows that are computed once their entries are written
    removed_if_empty: int = 0  # rows that lose a contributor, and go if it was the last one
    other_steps: int = 0  # what kinds do afterwards

    def add(self, plan: Plan) -> None:
        """Counts the plan of one more batch."""
        within = [write for chunk in plan.chunks for write in chunk.writes]
        rows = sum(hasattr(each, "row") for each in plan.deferred)
        behind = len(plan.puts) + rows
        self.transactions += len(plan.chunks)
        self.writes += len(within) + behind
        self.writes_behind += behind
        added = [write for write in within if isinstance(write, AddRow)]
        self.made_of_entries += len({write.key for write in added if write.moved})
        self.removed_if_empty += len({write.key for write in added if write.may_empty})
        self.other_steps += len(plan.deferred) - rows
