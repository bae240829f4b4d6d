"""The version of a change: its place among the changes of its item."""

from typing import NamedTuple

SEQUENCE_DIGITS_MAX = 40
"""Length of a sequence number (DynamoDB Streams API, StreamRecord: 21 to 40 digits)."""
LOCALSTACK_DIGITS = 56
"""Length of LocalStack's sequence numbers: those of the Kinesis records behind its DynamoDB streams."""
SEQUENCE = rf"[0-9]{{1,{SEQUENCE_DIGITS_MAX}}}|[0-9]{{{LOCALSTACK_DIGITS}}}"
LONGER = ":"
"""Begins a number of more than 40 digits in a version: it sorts after every digit, so after every shorter number."""
BY_OURSELVES = "+"
"""Begins a suffix of the version, for a change that a cascade or derived attributes made to a source item in a store
without a stream: the version sorts after the one that led to the change, and before every later one.
"""
UNLABELLED = "0000-00-00T00:00:00.000"
"""The stream label of records without a stream ARN: it sorts before every real label, so a real stream always wins."""


def sequence_text(sequence: str) -> str:
    """A sequence number as text whose order is the order of the numbers: padded to 40 digits.

    LocalStack's longer numbers are ``:`` and their 56 digits. Padding all to 56 would change every version, and make
    every state item larger.
    """
    if len(sequence) <= SEQUENCE_DIGITS_MAX or len(sequence := sequence.lstrip("0")) <= SEQUENCE_DIGITS_MAX:
        return sequence.zfill(SEQUENCE_DIGITS_MAX)
    return LONGER + sequence.zfill(LOCALSTACK_DIGITS)


class Version(NamedTuple):
    """A text that sorts in the order of the changes of one item: ``epoch/stream label/sequence number``.

    The number is padded to 40 digits, or has the form of ``sequence_text`` for longer ones. Sequence numbers differ in
    length, exceed 64 bits and restart with a new stream, so neither their text nor the number alone can be compared.
    For Kinesis the label is ``kinesis``, and the number is the time of the change in microseconds.
    """

    text: str

    @classmethod
    def of(cls, epoch: int, label: str, sequence: int | str) -> "Version":
        return cls(f"{epoch:02d}/{label}/{sequence_text(str(sequence))}")

    @property
    def epoch(self) -> int:
        return int(self.text[:2])

    @property
    def label(self) -> str:
        return self._bare[3:].rpartition("/")[0]

    @property
    def sequence(self) -> int:
        return int(self._bare.rpartition("/")[2].removeprefix(LONGER))

    @property
    def _bare(self) -> str:
        return self.text.partition(BY_OURSELVES)[0]

    def __str__(self) -> str:
        return self.text
