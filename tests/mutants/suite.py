"""Tests of the suite, run in this process while a mutant is in place."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tests.mutants.registry import Mutant

OPTIONS = (
    *("--quiet", "--tb=native", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:unraisableexception"),
)
"""The warning says that modules imported earlier keep their asserts. Tracebacks with source would take most of a run,
and so would the garbage collections of the plugin that looks for exceptions in destructors."""
MISFIT = re.compile(r"_\.<locals>\.\w+\(\) (takes|got|missing) .*")
"""What Python says of a mutant's function that no longer fits its place: such a failure says nothing."""


class Outcomes:
    """Collects how each test ended, and what failed because a mutant does not run."""

    def __init__(self) -> None:
        self.failed: dict[str, bool] = {}
        self.misfits: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        if report.when == "call":
            self.failed[name] = self.failed.get(name, False) or report.failed
        self.misfits += [found.group() for found in MISFIT.finditer(report.longreprtext)]


def failed_tests(mutant: Mutant) -> set[str]:
    """Those of a mutant's tests that fail on it; of a test with parameters, one case that fails is enough."""
    outcomes = Outcomes()
    with mutant.made(), redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        pytest.main([*mutant.tests, *OPTIONS], plugins=[outcomes])
    missing = set(mutant.tests) - outcomes.failed.keys()
    assert not outcomes.misfits, outcomes.misfits
    assert not missing, f"{', '.join(sorted(missing))} did not run:\n{out.getvalue()}"
    return {name for name, failed in outcomes.failed.items() if failed}
