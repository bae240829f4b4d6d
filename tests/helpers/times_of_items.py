"""Histories of items, of which exports and recordings show parts, in any order: each item ends as its newest state.

One history is drawn by a seed: writes at known microseconds, some of them within one second. Full exports, incremental
ones and slices of the recording of any times then come to a local state in any order. The model knows the true time of
each state that came, and keeps the newest one of each item.
"""

from collections import Counter
from random import Random
from typing import Any, NamedTuple

from streamfold import Add, App, Key, Router, Row, Sum
from streamfold.engines import EmbeddedEngine
from streamfold.errors import SettingsError
from streamfold.lifecycle.exports import load, open_export
from streamfold.lifecycle.page import Pages
from streamfold.records.envelope import Origins
from streamfold.records.values import encode
from streamfold.replay.files import Line
from streamfold.replay.replay import Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.exports import write_export, write_incremental
from tests.helpers.records import record

ORDER = Key("ORDER#{order_id}", "METADATA")
DAY, STATUS, CHANGES = Key("DAY#{day}", "TOTAL"), Key("STATUS#{status}", "ORDER#{order_id}"), Key("CHANGES", "ALL")
MARCH = 1_772_323_200_000_000
SECOND = 1_000_000
ITEMS, WRITES, STEPS = "abcd", 24, 6
LABELS = ("2026-01-01T00:00:00.000", "2026-02-01T00:00:00.000")


def application() -> App:
    router = Router()

    @router.view(ORDER, into=DAY)
    def totals(order):
        return Row(day=order["day"], total=Sum(order["total"]))

    @router.index(ORDER, into=STATUS)
    def by_status(order):
        return Row(status=order["status"], total=order["total"])

    @router.on(ORDER, into=CHANGES)
    def changes(change):
        return Add(changes=1)

    return App("orders", routers=[router])


class Write(NamedTuple):
    """A write of the history."""

    number: int
    item: str
    at: int  # microseconds
    old: dict[str, Any] | None
    new: dict[str, Any] | None

    @property
    def record(self) -> dict[str, Any]:
        label = LABELS[self.number >= WRITES // 2]  # the stream is switched off and on in between
        return record(self.old, self.new, 100 + self.number % (WRITES // 2), at=float(self.at // SECOND), label=label)


class History:
    """Writes in the order of their times."""

    def __init__(self, random: Random) -> None:
        self.writes: list[Write] = []
        items: dict[str, dict[str, Any] | None] = dict.fromkeys(ITEMS)
        at = MARCH
        for number in range(WRITES):
            item = random.choice(ITEMS)
            # Within a second an item takes no state twice: images would not show on which side of it an export is.
            near = bool(items[item]) and random.random() < 0.4
            at += random.randrange(1, SECOND // 4) if near else random.randrange(SECOND, 900 * SECOND)
            old = items[item]
            gone = old is not None and not near and random.random() < 0.25
            new = None if gone else self._item(random, item, number)
            items[item] = new
            self.writes.append(Write(number, item, at, old, new))

    @staticmethod
    def _item(random: Random, item: str, number: int) -> dict[str, Any]:
        day, status = random.choice(("monday", "tuesday")), random.choice(("open", "paid"))
        return {"PK": f"ORDER#{item}", "SK": "METADATA", "day": day, "status": status, "total": 1000 + number}

    def moment(self, random: Random) -> int:
        """A time: anywhere, or in the second of a write."""
        at = random.choice(self.writes).at + random.choice((0, 0, random.randrange(-SECOND, 90 * SECOND)))
        return at // 1000 * 1000 if random.random() < 0.5 else at // SECOND * SECOND

    def at(self, moment: int) -> dict[str, Write]:
        """The last write of each item up to a time."""
        return {write.item: write for write in self.writes if write.at <= moment}


class State:
    """A local state to which the parts of a history come, and the model of it."""

    def __init__(self, seed: int, folder: Any) -> None:
        self.random = Random(seed)
        self.history = History(self.random)
        folder.mkdir()
        self.folder, self.parts = folder, 0
        self.app = application()
        self.engine = EmbeddedEngine(self.app, folder / "state.db")
        self.newest: dict[str, tuple[int, dict[str, Any] | None]] = {}
        self.delivered: set[int] = set()
        self.refused: Counter[str] = Counter()

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice((self.full, self.incremental, self.recording, self.recording))()
            self.check()
        self.engine.close()

    def full(self) -> None:
        moment = self.history.moment(self.random)
        images = {item: write.new for item, write in self.history.at(moment).items()}
        items = [encode(image)["M"] for image in images.values() if image]
        place = write_export(self._folder(), items, time=self.random.choice((iso(moment), moment / SECOND)))
        self._load(place, {item: (moment, images.get(item)) for item in ITEMS})

    def incremental(self) -> None:
        begin, end = sorted((self.history.moment(self.random), self.history.moment(self.random)))
        before, after = self.history.at(begin), self.history.at(end)
        changed = {item: write for item, write in after.items() if write.at > begin}
        lines = [
            (
                {name: {"S": value} for name, value in (("PK", f"ORDER#{item}"), ("SK", "METADATA"))},
                image_of(before[item].new) if item in before else None,
                image_of(write.new),
                self.random.choice((write.at, str(write.at), {"N": str(write.at)})),
            )
            for item, write in changed.items()
        ]
        both = self.random.random() < 0.5
        place = write_incremental(self._folder(), lines, iso(begin), iso(end), both=both)
        self._load(place, {item: (write.at, write.new) for item, write in changed.items()})

    def recording(self) -> None:
        first = self.random.randrange(WRITES)
        part = self.history.writes[first : self.random.randrange(first, WRITES) + 1]
        origins = Origins(self.app.source_tables, Settings(), lambda _: None, self.app.tables)
        runtime = Runtime(self.app, self.engine, Settings(), warn=lambda _: None)
        size = self.random.choice((1, 3, 100))
        replay = Replay(runtime, origins, batch_records=size, put_sources=self.engine.put_sources)
        lines = [(Line("file", number), write.record) for number, write in enumerate(part)]
        summary = replay.process(lines)
        refused = {(line and line.number) for line, failure in summary.failures}
        self.refused["records"] += len(refused)
        taken = [write for number, write in enumerate(part) if number not in refused]
        self.delivered |= {write.number for write in taken}
        self._came({write.item: (write.at, write.new) for write in taken})

    def _load(self, place: str, states: dict[str, tuple[int, dict[str, Any] | None]]) -> None:
        export = open_export(place, self.app.tables["main"])
        try:
            load(self.app, self.engine, export)
        except SettingsError:  # items of the same second: nothing was loaded
            self.refused["exports"] += 1
            return
        runtime = Runtime(self.app, self.engine, Settings(), warn=lambda _: None)
        pages = Pages(runtime, ["totals", "by_status"])
        report = pages.reconcile([("main", f"ORDER#{item}", "METADATA") for item in ITEMS])
        assert not report.failed
        self._came(states)

    def _came(self, states: dict[str, tuple[int, dict[str, Any] | None]]) -> None:
        for item, (at, image) in states.items():
            if item not in self.newest or at >= self.newest[item][0]:
                self.newest[item] = at, image

    def check(self) -> None:
        """Compares items and rows with the model."""
        expected = {item: image for item, (_, image) in self.newest.items() if image}
        found = {}
        for item in ITEMS:
            stored = self.engine.stored_sources([("main", f"ORDER#{item}", "METADATA")])
            for source in stored.values():
                if source.raw:
                    found[item] = source.raw
        assert found == {item: encode(image)["M"] for item, image in expected.items()}
        rows = self.engine.read_rows([("main", "DAY#monday", "TOTAL"), ("main", "DAY#tuesday", "TOTAL")])
        totals = Counter[str]()
        for image in expected.values():
            totals[image["day"]] += image["total"]
        assert {row["PK"].removeprefix("DAY#"): row["total"] for row in rows.values() if row["total"]} == totals
        for item, image in expected.items():
            key = ("main", f"STATUS#{image['status']}", f"ORDER#{item}")
            assert self.engine.read_rows([key])[key]["total"] == image["total"]
        counted = self.engine.read_rows([("main", "CHANGES", "ALL")]).values()
        assert [int(row["changes"]) for row in counted] == ([len(self.delivered)] if self.delivered else [])

    def _folder(self) -> Any:
        self.parts += 1
        return self.folder / f"part{self.parts}"


def image_of(item: dict[str, Any] | None) -> Any:
    return None if item is None else encode(item)["M"]


def iso(moment: int) -> str:
    from datetime import UTC, datetime, timedelta

    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
