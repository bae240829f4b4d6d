"""The version of a change: its place among the changes of its item."""

from typing import NamedTuple

SEQUENCE_DIGITS_MAX = 40
"""Length of a sequence number (DynamoDB Streams API, StreamRecord: 21 to 40 digits)."""
SEQUENCE = rf"[0-9]{{1,{SEQUENCE_DIGITS_MAX}}}"
BY_OURSELVES = "+"
"""Begins a suffix of the version, for a change that a cascade or derived attributes made to a source item in a store
without a stream: the version sorts after the one that led to the change, and before every later one.
"""
UNLABELLED = "0000-00-00T00:00:00.000"
"""The stream label of records without a stream ARN: it sorts before every real label, so a real stream always wins."""


class Version(NamedTuple):
    """A text that sorts in the order of the changes of one item: ``epoch/stream label/sequence number``.

    The number is padded to 40 digits. Sequence numbers differ in length, exceed 64 bits and restart with a new stream,
    so neither their text nor the number alone can be compared. For Kinesis the label is ``kinesis``, and the number is
    the time of the change in microseconds.
    """

    text: str

    @classmethod
    def of(cls, epoch: int, label: str, sequence: int | str) -> "Version":
        return cls(f"{epoch:02d}/{label}/{str(sequence).zfill(SEQUENCE_DIGITS_MAX)}")

    @property
    def epoch(self) -> int:
        return int(self.text[:2])

    @property
    def label(self) -> str:
        return self._bare[3 : -SEQUENCE_DIGITS_MAX - 1]

    @property
    def sequence(self) -> int:
        return int(self._bare[-SEQUENCE_DIGITS_MAX:])

    @property
    def _bare(self) -> str:
        return self.text.partition(BY_OURSELVES)[0]

    def __str__(self) -> str:
        return self.text
