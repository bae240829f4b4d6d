"""Posts of one author and the edges of three readers, interleaved at every call, with jobs, flips and lost doorbells.

Whatever happens, a reader is shown every post that is there, newest first, if he follows the author, and nothing else;
and what he is shown as it is does not go away in between.
"""

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from unittest.mock import patch

from streamfold import App, Key, Router, Row, Table
from streamfold.batch.fan_outs import enqueue_open, run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.derivations.feed import fan_outs as lanes
from streamfold.derivations.feed import spreading
from streamfold.derivations.feed import spreading as audience
from streamfold.derivations.feed.spreading import OF_AUDIENCE
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.jobs import fan_outs
from streamfold.jobs.fan_outs import FanOuts
from streamfold.ledger.state_keys import audience_key
from streamfold.read.feeds import EngineQueries, page
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from tests.helpers.records import change, item

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
CALLS = ("transact", "put_post_rows", "read_state", "read_entries", "swap_state")
LATE_CALLS = ("transact", "put_post_rows")
MARKS = ("", "!")
READERS, POSTS = "vwxyz", "123"
BEGIN = 1_772_355_600.0
DEPTH_MAX = 2
CHANGES, PULLED_CHANGES = 14, 10
"""Changes of a history, and those more where audiences are pulled: a flip and a return take some."""
ROUNDS_MAX = 50
AHEAD_SECONDS, NONE_AHEAD = audience.PULLED_AHEAD_SECONDS, -1_000_000
"""How far ahead posts are pulled too after they are pushed again; the second: the next posts are pushed alone."""
RINGS = 0.03
CHECKED = 0.3
"""The share of steps after which is looked at what readers are shown."""


@cache
def applications(pull_above=None, **options):
    """Two versions of the code, which mark what they show."""

    def version(mark):
        router = Router()

        @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=300, inline=1, pull_above=pull_above, **options)
        def timeline(post, follow):
            if not follow.get("muted"):
                return Row(text=f"{post['text']}/{follow['name']}{mark}")
            return None

        return App("social", routers=[router])

    return tuple(map(version, MARKS))


@contextmanager
def small(ahead_seconds=NONE_AHEAD):
    """Two lanes and pages of one, so that a few edges are a long fan-out, and audiences that are counted often.

    ahead_seconds: how far ahead posts are pulled too after they are pushed again.
    """
    with (
        patch.object(fan_outs, "SEGMENTS", 2),
        patch.object(lanes, "PAGE", 1),
        patch.object(spreading, "COUNTED_SECONDS", 9),
        patch.object(audience, "PULLED_AHEAD_SECONDS", ahead_seconds),
    ):
        yield


@cache
def post_key(number):
    at = datetime.fromtimestamp(BEGIN, UTC) + timedelta(seconds=int(number) // 2)
    return POST.compose({"author_id": "b", "at": at, "post_id": number})


@cache
def edge_key(reader):
    return FOLLOW.compose({"reader_id": reader, "author_id": "b"})


class History:
    """Changes of posts and edges, their records in any order that the items allow, and doorbells."""

    def __init__(self, apps, seed, engine=None):
        self.apps, self.random = apps, Random(seed)
        self.ahead_seconds = AHEAD_SECONDS if seed % 2 else NONE_AHEAD
        self.engine = engine or MemoryEngine(apps[0].tables.values(), apps[0].chains)
        self.now, self.sequence, self.depth = BEGIN + 10, 0, 0
        self.left = CHANGES + (PULLED_CHANGES if apps[0].routes[0].options.pull_above else 0)
        self.items, self.waiting, self.queued, self.late = {}, [], [], []
        self.kept = {reader: {} for reader in READERS}
        self.route = apps[0].routes[0]
        for call in CALLS:
            setattr(self.engine, call, self._hooked(call, getattr(self.engine, call)))

    def run(self):
        with small(self.ahead_seconds):
            while self.left or self.waiting or self.queued:
                self.step()
                if self.random.random() < CHECKED:
                    self.check_kept()
            self._end()
        return self

    def step(self):
        """A change, an invocation, or a doorbell."""
        self.now += self.random.choice((0.001, 0.001, 10))
        drawn = self.random.random()
        if drawn < RINGS:
            enqueue_open(self._run(self.apps[0]))
        elif self.queued and drawn < 0.5:
            self._answer()
        elif self.waiting and drawn < 0.75:
            self._deliver()
        elif self.left:
            self._change()
        elif self.waiting:
            self._deliver()
        elif self.queued:
            self._answer()

    def _end(self):
        """Lets everything land, and rings until no fan-out is open."""
        while self.late:
            self.late.pop()()
        for _ in range(ROUNDS_MAX):
            run = self._run(self.apps[0])
            run.send_messages = None
            if not enqueue_open(run):
                return
            assert not run_fan_outs(run).failures
        raise AssertionError("fan-outs stay open")

    def _hooked(self, name, call):
        def hooked(*arguments, **named):
            if not self.depth:
                return call(*arguments, **named)
            self._meanwhile()
            if name in LATE_CALLS and self.random.random() < 0.04:
                self.late.append(lambda: call(*arguments, **named))
                raise EngineUnavailable("no answer")
            answer = call(*arguments, **named)
            self._fail()
            return answer

        return hooked

    def _fail(self):
        drawn = self.random.random()
        if drawn < 0.02:
            raise Died
        if drawn < 0.04:
            raise EngineUnavailable("no answer")

    def _meanwhile(self):
        drawn = self.random.random()
        if self.late and drawn < 0.03:
            self.late.pop(self.random.randrange(len(self.late)))()
        elif drawn < 0.1 and self.depth < DEPTH_MAX:
            self.step()

    def _change(self):
        self.left -= 1
        followed = any(self.items.get(edge_key(reader)) for reader in READERS)
        leaving = followed and self._is_pulled() and self.random.random() < 0.6  # so that posts are pushed again
        if self.random.random() < 0.5 and not leaving:
            place = post_key(self.random.choice(POSTS))
            after = {"text": str(self.left)}
        else:
            place = edge_key(self.random.choice([r for r in READERS if not leaving or self.items.get(edge_key(r))]))
            after = {"name": str(self.left), **({"muted": True} if self.random.random() < 0.2 else {})}
        before = self.items.get(place)
        if before and (leaving or self.random.random() < 0.4):
            after = None
        self.sequence += 1
        self.items[place] = after
        images = [image and item(*place, **image) for image in (before, after)]
        self.put(place, images[1])
        self.waiting.append((place, change(*images, self.sequence)))

    def put(self, place, source):
        """Writes an item as the application would; None for one that is removed."""
        raw = encode(source)["M"] if source else None
        self.engine.put_sources([(("main", *place), raw, f"{self.sequence:09}")])

    def _is_pulled(self):
        """Whether the author's posts are pulled at the moment."""
        if self.route.options.pull_above is None:
            return False
        key, depth, self.depth = audience_key("social", "timeline", "USER#b"), self.depth, 0
        found = self.engine.read_state([key], consistent=True).get(key, {"s": ""})
        self.depth = depth
        return '"mode": "pull"' in found["s"]

    def _run(self, app):
        def send_messages(queued):
            for each in queued:
                self.queued += [each] * self.random.choice((0, 1, 1, 1, 2))

        return Runtime(
            app, self.engine, Settings(), clock=lambda: self.now, pause=lambda _: None, send_messages=send_messages
        )

    def _deliver(self):
        """The first record of an item, as a stream delivers it, or one that comes again."""
        first = {}
        for place, record in self.waiting:
            first.setdefault(place, (place, record))
        chosen = self.random.choice(list(first.values()))
        self.waiting.remove(chosen)
        if not self._invoke(lambda run: process_changes(run, [chosen[1]])):
            self.waiting.insert(0, chosen)

    def _answer(self):
        queued = self.queued.pop(self.random.randrange(len(self.queued)))

        def answer(run):
            run.queued.append(queued)
            return run_fan_outs(run)

        self._invoke(answer)

    def _invoke(self, work):
        self.depth += 1
        try:
            return not work(self._run(self.random.choice(self.apps))).failures
        except (Died, EngineUnavailable):
            return False
        finally:
            self.depth -= 1

    def shown(self, reader):
        """What a reader is shown: the number of each post, and what it says."""
        rows, cursor = [], None
        depth, self.depth = self.depth, 0
        while True:
            got = page(self.route, EngineQueries(self.engine), {"reader_id": reader}, 2, cursor, 50, self.now)
            rows += got.rows
            cursor = got.cursor
            if cursor is None:
                self.depth = depth
                return [(row["SK"][-1], row["text"].rstrip("!")) for row in rows]

    def wanted(self, reader):
        """The same as the items say it, newest first."""
        edge = self.items.get(FOLLOW.compose({"reader_id": reader, "author_id": "b"}))
        if not edge or edge.get("muted"):
            return []
        posts = [(number, self.items.get(post_key(number))) for number in reversed(POSTS)]
        return [(number, f"{post['text']}/{edge['name']}") for number, post in posts if post]

    def wrong(self):
        """The first reader who is shown something else."""
        for reader in READERS:
            if (shown := self.shown(reader)) != self.wanted(reader):
                return reader, shown, self.wanted(reader)
        return None

    def check_kept(self):
        """What a reader was shown as it is stays shown until it changes.

        Where no posts are pulled ahead, one that was pulled before its record came is shown again when that is spread.
        """
        busy = self._busy()
        seen = {reader: self.shown(reader) for reader in READERS}
        for reader in READERS:
            wanted, shown = dict(self.wanted(reader)), dict(seen[reader])
            right = {number: text for number, text in shown.items() if wanted.get(number) == text}
            for number, text in self.kept[reader].items():
                is_early = self.ahead_seconds == NONE_AHEAD and post_key(number) in busy
                went = wanted.get(number) == text and number not in right and not is_early
                assert not went, f"post {number} went from the feed of {reader}"
            self.kept[reader] = right
        self._check_spread(busy, seen)

    def _busy(self):
        """The items of which a change is under way."""
        busy = {place for place, _ in self.waiting}
        for job in FanOuts(self._run(self.apps[0])).all():
            if job.what not in OF_AUDIENCE:
                busy.add(tuple(decode({"M": json.loads(job.options["key"])}).values()))
        return busy

    def _check_spread(self, busy, seen):
        """What is under way says nothing of; all else is shown as it is, while readers are told whom to pull too."""
        for reader in READERS:
            if edge_key(reader) not in busy:
                settled = {number for number in POSTS if post_key(number) not in busy}
                shown, wanted = (
                    [each for each in found if each[0] in settled] for found in (seen[reader], self.wanted(reader))
                )
                assert shown == wanted, f"{reader} is not shown what was spread"


def check(histories, first=0, **options):
    """Runs so many histories, each with its own seed."""
    apps = applications(**options)
    for seed in range(first, first + histories):
        found = History(apps, seed).run().wrong()
        assert found is None, f"seed {seed}: {found}"
