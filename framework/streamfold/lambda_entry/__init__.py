"""The entries of AWS Lambda: for a stream, a queue, a schedule, and a segment of a run.

Python's search for cycles is made rare here. A start makes some 170,000 containers that live as long as the
environment: those of boto3, botocore and this package. By default Python would search them over a hundred times
during the start, which takes a tenth of a cold start, and all of them again from time to time. A batch of 1,000
records keeps some 60,000 for a moment, with hardly any cycles: one search of them takes a tenth of the batch's time.
"""

import gc

AT_START = 500_000
"""New containers before Python searches for cycles; 700 by default."""
IN_BATCHES = 200_000
"""New containers in a batch, some 40 MB if all of them were cycles."""


def collect_rarely() -> None:
    """Searches for cycles once in ``AT_START`` containers. A higher threshold, or 0 (never), is kept."""
    if 0 < gc.get_threshold()[0] < IN_BATCHES:
        gc.set_threshold(AT_START)


def collect_in_batches() -> None:
    """Excludes the containers of the start from now on, and searches for cycles among those of batches."""
    if gc.get_threshold()[0] == AT_START:
        gc.freeze()
        gc.set_threshold(IN_BATCHES)


collect_rarely()  # a package runs before its modules: the imports of all entries below are covered
