"""Takes the failures of a batch while it is planned."""

from streamfold.commit.outcome import Failed
from streamfold.commit.triage import Triage, explained
from streamfold.errors import is_fatal
from streamfold.records.change import Change
from streamfold.routes.route import Route


class Failing:
    """Takes the failures of a batch. Without a ``triage`` (a dry run) every failure is reported."""

    def __init__(self, triage: Triage | None) -> None:
        self.triage = triage
        self.failed: list[Failed] = []

    def fails(self, change: Change, route: Route, error: Exception) -> bool:
        """Whether a failure is reported. A parked record is not reported and holds back no later one.

        Raises an error that is no record's fault; nothing of the batch is written yet.
        """
        if is_fatal(error):
            raise error
        failed: Failed | None = Failed(change, route, explained(route, error))
        if failed is not None and self.triage is not None:
            failed = self.triage(failed)
        if failed is not None:
            self.failed.append(failed)
        return failed is not None
