"""What handlers print while a command runs them."""

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout


def prints_of_handlers(*, aside: bool) -> AbstractContextManager[object]:
    """Sends what handlers print to standard error, so that standard output is JSON alone."""
    return redirect_stdout(sys.stderr) if aside else nullcontext()
