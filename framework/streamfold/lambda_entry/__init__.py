"""The entries of AWS Lambda: a stream's, a queue's, a schedule's, and that of a part of a run.

Python looks for cycles rarely here. A start makes some 170,000 containers that are never given back: boto3's,
botocore's and those of this package. Python would look through them over a hundred times on the way, which takes a
tenth of a cold start, and through all of them now and then as long as the environment lives. A batch of 1,000 records
keeps some 60,000 for a moment, and hardly any cycles: one look at them takes as long as a tenth of the batch.
"""

import gc

AT_START = 500_000
"""New containers after which Python looks for cycles; 700 by default."""
IN_BATCHES = 200_000
"""New containers in a batch, some 40 MB if all of them were cycles."""


def collect_rarely() -> None:
    """Looks for cycles once in ``AT_START`` containers. A threshold that was set higher, or to 0 (never), stays."""
    if 0 < gc.get_threshold()[0] < IN_BATCHES:
        gc.set_threshold(AT_START)


def collect_in_batches() -> None:
    """Leaves out the containers of the start from now on, and looks for cycles among those of batches."""
    if gc.get_threshold()[0] == AT_START:
        gc.freeze()
        gc.set_threshold(IN_BATCHES)


collect_rarely()  # a package runs before its modules: the imports of all entries below are covered
