"""The errors of the twins, and the corresponding errors of AWS.

TwinError                    AWS has no such operation, or the twin was used in a way that cannot work
+-- WriteRefused             ValidationException; nothing was written
|   +-- ConditionFailed      ConditionalCheckFailedException
|   +-- TransactionCancelled TransactionCanceledException
+-- RecordsTrimmed           TrimmedDataAccessException
"""

from streamfold.errors import StreamfoldError


class TwinError(StreamfoldError):
    """The base of all errors that the twins raise on purpose."""


class WriteRefused(TwinError):  # noqa: N818 - named by the outcome of the write
    """Raised when DynamoDB would refuse a write; nothing of it was done."""


class ConditionFailed(WriteRefused):
    """Raised when a write's condition on the item's existence does not hold."""


class TransactionCancelled(WriteRefused):
    """Raised when a condition of a transaction does not hold.

    ``reasons`` has one code per action, in order, ``"None"`` for an action that was not the cause (API Reference,
    TransactionCanceledException).
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__(
            f"The transaction was cancelled [{', '.join(reasons)}]: a condition on an item's existence does not hold. "
            "None of its actions was done."
        )


class RecordsTrimmed(TwinError):  # noqa: N818 - named by the outcome of the records
    """Raised when a reader asks for records that the stream no longer holds."""


class HandlerFails(AssertionError):  # noqa: N818 - named by its cause
    """Raised when a handler cannot process an item although no fault was injected."""
