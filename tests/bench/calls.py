"""Slow calls of an external handler: one after the other, in threads, and as coroutines of one event loop."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from streamfold import App, Change, Key, Router
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
ITEMS, CALL_SECONDS, AT_ONCE, GOAL = 100, 0.05, 8, 6.0


def run(*, large: bool) -> Iterator[str]:
    """The times of 100 calls of 50 ms; ``large`` changes nothing."""
    del large

    def waits(change: Change) -> None:
        time.sleep(CALL_SECONDS)

    async def awaits(change: Change) -> None:
        await asyncio.sleep(CALL_SECONDS)

    alone = _seconds(waits, 1)
    for what, handler in (("threads", waits), ("coroutines", awaits)):
        beside = _seconds(handler, AT_ONCE)
        yield (
            f"{ITEMS} calls of {CALL_SECONDS * 1000:.0f} ms, at_once={AT_ONCE}, {what}: {beside:.2f} s; one after the "
            f"other {alone:.2f} s, {alone / beside:.1f} times as long (goal: at least {GOAL:.0f})"
        )


def _seconds(handler: Callable[[Change], Any], at_once: int) -> float:
    router, source = Router(), Source()
    router.on(ORDER, external=True, name="call", at_once=at_once)(handler)
    app = App("shop", routers=[router])
    records = [source.put(f"ORDER#{number}") for number in range(ITEMS)]
    runtime = Runtime(app, EmbeddedEngine(app.tables.values()), Settings(), outside=True)
    began = time.perf_counter()
    assert process_event(runtime, records).failures == []
    return time.perf_counter() - began
