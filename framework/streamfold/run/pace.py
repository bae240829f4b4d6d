"""What a process learns about its transactions, from batch to batch."""

from collections.abc import Collection, Mapping

from streamfold.settings.limits import ACTIONS_MAX

ACTIONS_LEAST = 12
"""Writes of a transaction below which conflicts make it no smaller: with fewer, what is paid for guards is lost."""
ACTIONS_GROWN = 12
"""Writes by which transactions grow again with each batch that meets no conflict."""
STAYED_LEAST = 500
"""Steps of a handler in a row that leave no row empty, after which it is expected to leave none. A refused transaction
costs up to 200 write units, perhaps one in each lane, and a step that notes nothing saves two.
"""


class Emptying:
    """The handlers that leave rows empty every now and then.

    Their steps note the rows that they lower, so that these are removed if they are empty. The steps of others are
    refused where they would leave a row empty, and need no note and no removal.
    """

    def __init__(self) -> None:
        self._stayed: dict[str, int] = {}  # of each such handler, the steps since one that left a row empty

    def __contains__(self, handler: object) -> bool:
        return handler in self._stayed

    def met(self, handler: str) -> None:
        """Notes that a step of a handler would have left a row empty."""
        self._stayed[handler] = 0

    def finished(self, steps: Mapping[str, int], emptied: Collection[str]) -> None:
        """Takes how many steps of handlers noted rows, and the handlers of rows that were empty."""
        for handler, count in steps.items():
            if handler in emptied:
                self._stayed[handler] = 0
            elif handler in self._stayed:
                self._stayed[handler] += count
                if self._stayed[handler] >= STAYED_LEAST:
                    del self._stayed[handler]


class SendingPace:
    """What a process has learnt about its transactions, from batch to batch.

    Transactions are as large as they may be. They are halved where they meet those of another process, and grow again.
    """

    def __init__(self) -> None:
        self.careful = False  # this batch may have been delivered before: its first transaction goes alone
        self.unsure = True  # so may the next one
        self.conflicts = 0  # transactions that met another process since they were last told
        self._most = ACTIONS_MAX
        self.emptying = Emptying()
        self._calm = True

    def actions(self, most: int) -> int:
        """Writes of one transaction, where a store or a setting allows so many."""
        return min(most, self._most) if most <= ACTIONS_MAX else most

    def met(self, actions: int) -> None:
        """Notes that a transaction of so many writes met another process."""
        self.conflicts += 1
        self._calm = False
        self._most = min(self._most, max(actions // 2, ACTIONS_LEAST))

    def began(self) -> None:
        """Notes the begin of a batch. Unless ``ended`` is told of it, the next one may be the same."""
        self.careful, self.unsure = self.unsure, True

    def ended(self, *, again: bool) -> None:
        """Notes the end of a batch, and whether some of its records come again."""
        self.unsure = again
        if self._calm:
            self._most = min(self._most + ACTIONS_GROWN, ACTIONS_MAX)
        self._calm = True

    def told(self) -> tuple[int, int]:
        """The writes of a transaction now, and how often others were met since this was last asked."""
        conflicts, self.conflicts = self.conflicts, 0
        return self._most, conflicts
