"""Runs the command line in this process, as if the process had just begun: a tenth of what another process takes."""

import gc
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from streamfold.cli import main
from tests.helpers.commands import ROOT, Ran, environment
from tests.helpers.service_models import SharedLoader


def streamfold(*arguments: Any, folder: Path = ROOT, **variables: str) -> Ran:
    """Runs ``streamfold ARGUMENTS`` in a folder, with these environment variables and none of this process's."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    told = (redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["streamfold", *map(str, arguments)]))
    with _begun(folder, environment(**variables), *told):
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 1
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@contextmanager
def _begun(folder: Path, variables: dict[str, str], *more: AbstractContextManager[Any]) -> Iterator[None]:
    """What a new process finds, and afterwards everything as it was."""
    with ExitStack() as stack:
        stack.callback(gc.set_threshold, *gc.get_threshold())
        stack.enter_context(chdir(folder))
        stack.enter_context(patch.dict(os.environ, variables, clear=True))
        stack.enter_context(
            patch.object(sys, "path", [str(folder), *(p for p in sys.path if p not in ("", str(ROOT)))])
        )
        stack.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())))
        stack.enter_context(patch.object(logging.root, "handlers", [logging.lastResort]))
        stack.enter_context(patch("boto3.DEFAULT_SESSION", None))
        stack.enter_context(patch("botocore.loaders.Loader", SharedLoader))
        stack.enter_context(_applications_forgotten(folder))
        for each in more:
            stack.enter_context(each)
        yield


@contextmanager
def _applications_forgotten(folder: Path) -> Iterator[None]:
    """Every command imports its application anew, and leaves those that the tests know."""
    known = {name: sys.modules.pop(name) for name in _applications(folder)}
    try:
        yield
    finally:
        for name in _applications(folder):
            del sys.modules[name]
        sys.modules.update(known)


def _applications(folder: Path) -> list[str]:
    """Modules of ``handlers``, and those that lie in a folder of a test."""
    return [
        name
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "handlers"
        or (folder != ROOT and str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"))
    ]
