from random import Random

import pytest

from streamfold.engines import item_cache
from streamfold.engines.item_cache import KeptEntries
from streamfold.engines.protocol import Entries
from streamfold.writes.guarded import StateKey


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Generations and partitions of a few entries, so that both are full all the time."""
    monkeypatch.setattr(item_cache, "ENTRIES_MAX", 12)
    monkeypatch.setattr(item_cache, "PARTITION_ENTRIES_MAX", 5)


class Stored:
    """Partitions of a file, and what is kept of them, asked as an engine asks."""

    def __init__(self):
        self.file = {f"p{number}": {} for number in range(6)}
        self.kept = KeptEntries()

    def write(self, partition, place, value):
        self.file[partition][place] = value
        if value is None:
            del self.file[partition][place]
        self.kept.change(StateKey(partition, place), None if value is None else {"s": value})

    def expected(self, wanted):
        places = sorted(self.file[wanted.partition], reverse=wanted.descending)
        within = [place for place in places if place > wanted.after and (not wanted.before or place < wanted.before)]
        return [(place, self.file[wanted.partition][place]) for place in within[: wanted.most]]

    def read(self, wanted):
        if not self.kept.knows(wanted.partition):
            self.kept.take(wanted.partition, sorted(self.file[wanted.partition].items()), 5)
        return self.kept.read(wanted)


def test_a_partition_is_read_right_after_the_one_that_filled_a_generation():
    stored = Stored()
    for number in range(6):
        for place in range(4):
            stored.write(f"p{number}", str(place), "v")
        wanted = Entries(f"p{number}", 4)
        assert stored.read(wanted) == stored.expected(wanted)


def test_a_partition_with_too_many_entries_is_known_and_not_kept():
    stored = Stored()
    for place in range(6):
        stored.write("p0", str(place), "v")
    assert stored.read(Entries("p0", 1)) is None
    assert stored.kept.knows("p0")


def test_partitions_that_grow_make_room_for_others_too():
    stored = Stored()
    for partition in ("p0", "p1", "p2"):
        stored.read(Entries(partition, 1))
        for place in range(5):
            stored.write(partition, str(place), "v")
    stored.read(Entries("p3", 1))
    stored.read(Entries("p4", 1))
    assert not stored.kept.knows("p0")


@pytest.mark.parametrize("seed", range(20))
def test_partitions_are_read_as_they_were_written(seed):
    random, stored = Random(seed), Stored()
    for _ in range(300):
        partition, place = random.choice([*stored.file]), str(random.randrange(8))
        drawn = random.random()
        if drawn < 0.5:
            stored.write(partition, place, str(random.random()))
        elif drawn < 0.65 and place in stored.file[partition]:
            stored.write(partition, place, None)
        elif drawn < 0.7:
            stored.kept.drop(partition)
        else:
            ends = sorted(random.sample([*map(str, range(9))], 2))
            ends = [end if random.random() < 0.5 else "" for end in ends]
            wanted = Entries(partition, random.randint(1, 6), ends[0], random.random() < 0.5, before=ends[1])
            found = stored.read(wanted)
            assert found in (None, stored.expected(wanted))
