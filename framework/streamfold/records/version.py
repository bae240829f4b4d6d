"""The version of a change: its place among the changes of its item."""

from typing import NamedTuple

SEQUENCE_DIGITS_MAX = 40
"""Length of a sequence number (DynamoDB Streams API, StreamRecord: 21 to 40 digits)."""
KINESIS_DIGITS_MAX = 129
"""Length of a sequence number of Kinesis (Kinesis API, SequenceNumber). LocalStack gives the records of a DynamoDB
stream the numbers of the Kinesis records behind them, of 56 digits."""
SEQUENCE = rf"[0-9]{{1,{KINESIS_DIGITS_MAX}}}"
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

    A longer number, as LocalStack gives it, is ``:``, its length in three digits, and its digits. A version of 40
    digits stays as it was, and costs no more.
    """
    if len(sequence) <= SEQUENCE_DIGITS_MAX or len(sequence := sequence.lstrip("0")) <= SEQUENCE_DIGITS_MAX:
        return sequence.zfill(SEQUENCE_DIGITS_MAX)
    return f"{LONGER}{len(sequence):03d}{sequence}"


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
        text = self._bare.rpartition("/")[2]
        return int(text[4:] if text.startswith(LONGER) else text)

    @property
    def _bare(self) -> str:
        return self.text.partition(BY_OURSELVES)[0]

    def __str__(self) -> str:
        return self.text
