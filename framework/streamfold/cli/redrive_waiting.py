"""The documents of all places of a redrive; the first can be looked at before they are taken."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from streamfold.errors import RecordError, SettingsError
from streamfold.failures.failed_records import Delivered, StreamRange, Waiting, WaitingPlace, left_of
from streamfold.failures.redrive import is_local
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins

PEEKED_DOCUMENTS_MAX = 100
"""Documents that are looked at for the name of the table before any is redriven."""


class WaitingDocuments:
    """The documents of all places; the first can be looked at before they are taken."""

    def __init__(self, places: Sequence[WaitingPlace]) -> None:
        self._documents = ((place, waiting) for place in places for waiting in place)
        self._first: list[tuple[WaitingPlace, Waiting]] = []

    def __iter__(self) -> Iterator[tuple[WaitingPlace, Waiting]]:
        return chain(self._first, self._documents)

    def find_table(self, origins: Origins) -> None:
        """Lets ``origins`` see the table of the first good document. Raises ``SettingsError`` where none tells it."""
        for place, waiting in islice(self._documents, PEEKED_DOCUMENTS_MAX):
            self._first.append((place, waiting))
            if _tells_table(origins, waiting):
                return
        if self._first:
            raise SettingsError(
                f"The documents do not tell the real name of table {MAIN.name!r}: give it, --table {MAIN.name}=REAL."
            )


def _tells_table(origins: Origins, waiting: Waiting) -> bool:
    """Whether a document tells the real name of the main table, which ``origins`` then knows."""
    try:
        left = left_of(waiting.document or {})
        if isinstance(left, StreamRange):
            if left.is_kinesis:  # only its records name their tables
                return False
            origins.table_of(left.stream_arn)
        else:
            records = left.records[:1] if isinstance(left, Delivered) else [] if is_local(left) else [left.record]
            for record in records:
                origins.change(record)
    except RecordError:
        return False
    return origins.adopted is not None
