"""What a run over all items calls after each page: progress is shown, failed items are kept, a lag is waited for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamfold.lifecycle.page_report import ItemFailed, PageReport

Tell = Callable[["FillingProgress"], None]
KeepFailed = Callable[[Sequence[ItemFailed]], None]
"""Is given the failed items of each page, before the run goes on behind them."""
Metered = Callable[[], tuple[float, float]]
"""Read and write units that were consumed since it was asked last."""


@dataclass(slots=True)
class FillingProgress:
    """How far a run is."""

    read: int = 0  # keys that were read
    report: PageReport = field(default_factory=PageReport)
    failed: int = 0  # items, those too that the report does not remember
    segments: int = 0
    done: int = 0  # segments
    unkeyed: int = 0  # ledger items whose source cannot be told, because its key is too long to be kept
    waits: str = ""  # what the run waits for; "": it does not wait


class RunHooks(NamedTuple):
    """What a run calls after each page. The defaults do nothing."""

    tell: Tell = lambda _: None
    keep: KeepFailed = lambda _: None
    lag: Callable[[], str] = lambda: ""  # why the run has to wait for the live stream; "": it does not wait
