"""What several mutants are made of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from streamfold import Change
from streamfold.engines import MemoryEngine
from streamfold.proofs.driver import NOW
from streamfold.proofs.faults import FaultyEngine
from streamfold.writes.guarded import Claim, LedgerWrite, Refused

HOUR_SECONDS = 60 * 60


def is_guard(write: Any) -> bool:
    return isinstance(write, LedgerWrite | Claim)


def in_two(first: Callable[[Any], bool]) -> Any:
    """A transaction sent as two: first the writes for which this holds."""
    whole = FaultyEngine.transact

    def transact(self: FaultyEngine, writes: Any, expires_at: int) -> Refused | None:
        for some in ([write for write in writes if first(write)], [write for write in writes if not first(write)]):
            refused = whole(self, some, expires_at) if some else None
            if refused is not None:
                reasons = dict(zip([write.key for write in some], refused.reasons, strict=True))
                return Refused(tuple(reasons.get(write.key) for write in writes))
        return None

    return patch.object(FaultyEngine, "transact", transact)


def expiring_in_an_hour(kind: type) -> Any:
    """Writes of this kind are kept for an hour."""
    after = MemoryEngine._after

    def short_lived(self: MemoryEngine, write: Any, local: Any, expires_at: int) -> Any:
        return after(self, write, local, int(NOW) + HOUR_SECONDS if isinstance(write, kind) else expires_at)

    return patch.object(MemoryEngine, "_after", short_lived)


@contextmanager
def unpadded() -> Iterator[None]:
    """Versions that compare as the text of their numbers."""
    made = Change.__init__

    def without_zeros(self: Change, record: Any, origin: Any) -> None:
        made(self, record, origin)
        self.version_text = origin.version_prefix + self.sequence

    with patch.object(Change, "__init__", without_zeros):
        yield
