"""Work in a process of its own, over a store that lives in this one: the memory of the work is that of its process."""

import copyreg
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

READING = ("read_state", "read_together", "read_rows", "read_sources")
"""Calls whose first argument may be any iterable."""
DONE = "done"
PEAK, NOW = "VmHWM", "VmRSS"

copyreg.pickle(MappingProxyType, lambda proxy: (dict, (dict(proxy),)))  # the default of a write's attributes


class Elsewhere:
    """The store, as the process of the work has it. It has no stream of its own."""

    def __init__(self, store: Connection) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("pending", "advance", "retry"):
            raise AttributeError(name)

        def call(*given: Any, **named: Any) -> Any:
            first = [list(given[0])] if name in READING else given[:1]
            self.store.send((name, (*first, *given[1:]), named))
            return self.store.recv()

        return call


def _work(store: Connection, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    store.recv()
    found = work(Elsewhere(store), *given)
    store.send((DONE, (found,), {}))
    store.recv()


class WorkProcess:
    """A process that does ``work(engine, *given)``, whose calls are answered here, one by one."""

    def __init__(self, work: Callable[..., Any], *given: Any) -> None:
        self.store, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(theirs, work, given), daemon=True
        )
        self.process.start()
        theirs.close()
        self.idle_mib = self.peak_mib = 0.0
        self.result: Any = None

    def calls(self) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
        """The calls until the work is done or the process was killed; each is to be answered, or ends it."""
        self.store.send(None)
        while self.process.exitcode is None:
            name, given, named = self.store.recv()
            self.idle_mib = self.idle_mib or self.mib(NOW)  # with all modules loaded, before the first answer
            self.peak_mib = self.mib(PEAK)
            if name == DONE:
                (self.result,) = given
                self.answer(None)
                self.process.join()
                return
            yield name, given, named

    def answer(self, value: Any) -> None:
        self.store.send(value)

    def kill(self) -> None:
        """``kill -9``, in the middle of a call."""
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join()

    def mib(self, name: str) -> float:
        """Memory of the process, as the kernel tells it under this name."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text("utf-8").splitlines()
        (found,) = (line for line in lines if line.startswith(f"{name}:"))
        return int(found.split()[1]) / 1024
