"""The embedded engine's file: what is in it stays, and what is wrong with it is said."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from decimal import Decimal
from random import Random
from threading import Barrier

import pytest

from streamfold import Table
from streamfold.engines import EmbeddedEngine, MemoryEngine, item_cache, state_file
from streamfold.engines.protocol import Entries
from streamfold.engines.state_file import StateFile
from streamfold.errors import EngineError, SettingsError
from streamfold.writes.guarded import AddRow, Claim, DeleteRow, DeleteState, PutRow, PutState, StateKey

SHOP = Table("shop", sort=None)
CLAIM = Claim(StateKey("claim", "1"))
ROW = PutRow(("shop", "1", None), {"a": 1})
COUNTED = AddRow(("shop", "2", None), {"a": 1}, 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture
def opened(path):
    """Opens the file, as often as wanted."""
    engines = []

    def open_file():
        engines.append(EmbeddedEngine([SHOP], path, wanted=lambda row: ["main"]))
        return engines[-1]

    yield open_file
    for engine in engines:
        engine.close()


def rows(engine):
    return [item["PK"]["S"] for item in engine.items(SHOP)]


def test_rows_state_and_stream_are_there_when_the_file_is_opened_again(opened):
    opened().transact([CLAIM, ROW], 5)
    again = opened()
    assert rows(again) == ["1"]
    assert again.read_state([CLAIM.key]) == {CLAIM.key: {"ttl": 5}}
    assert [record.record["eventName"] for record in again.pending(10)] == ["INSERT"]


def test_a_file_that_many_open_at_once_is_made_by_one_of_them(tmp_path):
    for number in range(10):
        start = Barrier(8)

        def opened_at_once(path=tmp_path / f"{number}.db", start=start):
            start.wait()
            with closing(EmbeddedEngine([SHOP], path)) as engine:
                return engine.pending(1)

        with ThreadPoolExecutor(8) as threads:
            assert [done.result() for done in [threads.submit(opened_at_once) for _ in range(8)]] == [[]] * 8


def test_a_file_that_another_process_keeps_locked_is_said_to_be(path, monkeypatch):
    monkeypatch.setattr(state_file, "LOCK_SECONDS_MAX", 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SettingsError, match=r"is locked\): another process keeps it locked. Name another"):
            EmbeddedEngine([SHOP], path)


def test_a_file_of_another_program_is_left_as_it_is(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="is a SQLite file of another program"):
        EmbeddedEngine([SHOP], path)
    assert path.read_bytes() == before


def test_record_that_another_process_put_back_is_not_dropped_with_those_that_are_done(opened):
    engine, other = opened(), opened()
    for number in "12":
        engine.transact([PutRow((*ROW.key[:1], number, *ROW.key[2:]), {})], 0)
    first, second = engine.pending(10)
    engine.advance(first.sequence, [])  # the first failed
    assert engine.pending(10) == [second]
    other.retry()
    engine.advance(second.sequence, [second.sequence])
    engine.retry()
    assert engine.pending(10) == [first]


def test_transaction_that_raises_is_undone_and_the_engine_goes_on(opened):
    engine = opened()
    with pytest.raises(KeyError):
        engine.transact([ROW, PutRow(("no such table", "1", None), {})], 0)
    assert rows(engine) == []
    assert engine.transact([ROW], 0) is None
    assert rows(engine) == ["1"]


def test_state_without_sources_of_a_table_cannot_tell_whether_an_item_is_gone():
    with closing(EmbeddedEngine([SHOP])) as engine:
        engine.transact([PutRow(("shop", "2", None), {"derived": True})], 0)
        with pytest.raises(EngineError) as raised:
            engine.read_source(("shop", "1", None))
    assert str(raised.value) == (
        "The state holds no source items of table 'shop', so a missing item cannot be recognised. "
        "Replay the records instead, which keeps them beside its rows: streamfold replay FILES --state FILE. "
        "Only records with new images have them."
    )


WRITES = {
    "transact": lambda engine: engine.transact([ROW], 0),
    "insert rows": lambda engine: engine.insert_rows([ROW]),
    "remove empty rows": lambda engine: engine.remove_empty([ROW.key]),
    "swap state": lambda engine: engine.swap_state(CLAIM.key, {}, 0),
    "put sources": lambda engine: engine.put_sources([]),
    "advance": lambda engine: engine.advance(1, [1]),
}


@pytest.mark.parametrize("write", WRITES)
def test_file_that_another_process_writes_to_is_an_error_that_names_it(monkeypatch, opened, path, write):
    monkeypatch.setattr(state_file, "LOCK_SECONDS_MAX", 0)
    engine = opened()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineError) as raised:
        WRITES[write](engine)
    other.close()
    assert str(raised.value) == (
        f"State file {path} cannot be written (database is locked): does another process use it?"
    )
    WRITES[write](engine)


def test_file_on_a_full_disk_is_an_error_and_keeps_what_it_had(opened):
    engine = opened()
    engine.transact([COUNTED], 0)
    engine._file.execute("PRAGMA max_page_count = 10")
    with pytest.raises(EngineError, match=r"\(database or disk is full\): make room on its disk"):
        engine.transact([COUNTED, PutRow(("shop", "3", None), {"text": "x" * 100_000})], 0)
    assert [item["a"]["N"] for item in engine.items(SHOP)] == ["1"]


READS = {
    "rows": lambda engine: engine.read_rows([COUNTED.key]),
    "state": lambda engine: engine.read_state([CLAIM.key]),
    "state as of one moment": lambda engine: engine.read_together([CLAIM.key]),
    "entries": lambda engine: engine.read_entries(Entries(CLAIM.key.pk, 5)),
    "items": lambda engine: list(engine.items(SHOP)),
    "items of a prefix": lambda engine: list(engine.items_from(SHOP, "")),
    "state items": lambda engine: list(engine.state_items()),
    "own stream": lambda engine: engine.pending(5),
}


def spoil(path, text):
    """Writes a text over all items of a state, its state and its stream."""
    other = sqlite3.connect(path)
    for column, table in (("item", "items"), ("item", "state"), ("record", "stream")):
        other.execute(f"UPDATE {table} SET {column} = ?", (text,))
    other.execute("INSERT INTO stream (record) VALUES (?)", (text,))
    other.commit()
    other.close()


@pytest.mark.parametrize("text", ["{", "5", "\0", b"{}\xff", "[" * 100_000])
@pytest.mark.parametrize("read", READS)
def test_file_whose_items_are_damaged_is_an_error_that_says_so(opened, path, read, text):
    engine = opened()
    engine.transact([COUNTED, CLAIM], 0)
    spoil(path, text)
    with pytest.raises(EngineError, match=r"is damaged\. replay --fresh starts anew, or name another with --state\."):
        READS[read](engine)


@pytest.mark.parametrize("read", READS)
def test_file_with_a_damaged_page_is_an_error_that_says_so(opened, path, read):
    engine = opened()
    engine.transact([COUNTED, CLAIM], 0)
    engine.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"cannot be read \(.*\): it is damaged\."):
        READS[read](opened())


def test_file_of_another_program_is_left_alone(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    with pytest.raises(SettingsError) as raised:
        EmbeddedEngine([SHOP], path)
    assert str(raised.value) == (f"State file {path} is a SQLite file of another program. Name another with --state.")


def test_file_that_is_no_database_is_an_error(path):
    path.write_text("not a database " * 100)
    with pytest.raises(SettingsError, match=r"cannot be opened \(file is not a database\)"):
        EmbeddedEngine([SHOP], path)


@pytest.mark.parametrize("name", ["none/state.db", "."])
def test_folder_that_is_not_there_or_is_no_file_is_an_error(tmp_path, name):
    with pytest.raises(SettingsError, match=r"cannot be opened \(.*\): is it a folder, or may you not write it"):
        EmbeddedEngine([SHOP], tmp_path / name)


@pytest.mark.parametrize("kept_max", [2_000, 3])
def test_entries_that_a_batch_has_not_written_yet_are_read_with_those_of_the_file(opened, monkeypatch, kept_max):
    monkeypatch.setattr(item_cache, "PARTITION_ENTRIES_MAX", kept_max)
    engine = opened()
    before, after = (StateKey("entries", place) for place in ("1", "4"))
    engine.transact([PutState(before, "first"), PutState(after, "last")], 0)
    with engine.batch():
        engine.transact([DeleteState(after), *(PutState(StateKey("entries", n), n) for n in "235")], 0)
        expected = [("1", "first"), ("2", "2"), ("3", "3"), ("5", "5")]
        assert engine.read_entries(Entries("entries", 10)) == expected
    assert opened().read_entries(Entries("entries", 10)) == expected


def test_a_batch_writes_the_entries_of_all_partitions_together(opened, monkeypatch):
    engine, written = opened(), []
    put_all = engine._file.put_all
    monkeypatch.setattr(engine._file, "put_all", lambda *given: (written.append(given), put_all(*given)))
    with engine.batch():
        for partition in "abc":
            engine.transact([PutState(StateKey(partition, "1"), "value")], 0)
            assert engine.read_entries(Entries(partition, 1)) == [("1", "value")]
        assert not written
    assert opened().read_entries(Entries("c", 1)) == [("1", "value")]


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_read_in_a_batch_as_they_were_written_whatever_is_kept_of_them(opened, monkeypatch, seed):
    monkeypatch.setattr(item_cache, "PARTITION_ENTRIES_MAX", 4)
    monkeypatch.setattr(item_cache, "WANTED_TIMES_MAX", 2)
    monkeypatch.setattr(item_cache, "ENTRIES_MAX", 12)
    random, engine, stored = Random(seed), opened(), {}
    for _ in range(20):
        with engine.batch():
            for _ in range(20):
                key = StateKey(random.choice(["entries#a", "b"]), str(random.randrange(9)))
                change_state(random, engine, stored, key)
                wanted = entries_wanted(random, key.pk)
                assert engine.read_entries(wanted) == entries_of(stored, wanted)


@pytest.mark.parametrize("seed", range(20))
def test_state_items_are_found_whoever_wrote_them(opened, seed):
    random, engines, stored = Random(seed), [opened(), opened()], {}
    for _ in range(40):
        changed = dict(stored)
        engine = random.choice(engines)
        with suppress(UndoneError), engine.batch():
            for _ in range(random.randint(1, 3)):
                use_state(random, engine, changed)
            if random.random() < 0.2:
                raise UndoneError
            stored = changed


class UndoneError(Exception):
    """Ends a batch."""


def change_state(random, engine, stored, key):
    """Puts or deletes a state item, or neither, and what is expected of it."""
    if random.random() < 0.4:
        stored[key] = str(random.random())
        engine.transact([PutState(key, stored[key])], 0)
    elif random.random() < 0.4:
        stored.pop(key, None)
        engine.transact([DeleteState(key)], 0)


def use_state(random, engine, stored):
    """Changes a state item, and what is expected of it, or reads it."""
    key = StateKey(random.choice(["", "entries#"]) + random.choice("abcd"), random.choice("12"))
    change_state(random, engine, stored, key)
    assert engine.read_state([key]) == ({key: {"s": stored[key]}} if key in stored else {})
    wanted = Entries(key.pk, 2)
    assert engine.read_entries(wanted) == entries_of(stored, wanted)


def entries_wanted(random, partition):
    after, before = sorted(random.sample([*map(str, range(9))], 2))
    bounds = {"after": after if random.random() < 0.7 else "", "before": before if random.random() < 0.5 else ""}
    return Entries(partition, random.randint(1, 9), descending=random.random() < 0.5, **bounds)


def entries_of(stored, wanted):
    found = {key.sk: text for key, text in stored.items() if key.pk == wanted.partition}
    inside = [place for place in found if wanted.after < place and (not wanted.before or place < wanted.before)]
    return [(place, found[place]) for place in sorted(inside, reverse=wanted.descending)[: wanted.most]]


def test_a_batch_does_not_read_a_thousand_entries_where_one_is_wanted(opened, monkeypatch):
    engine, asked = opened(), []
    with engine.batch():
        for number in range(1_000):
            engine.transact([PutState(StateKey("entries", f"{number:04d}"), "value")], 0)
    engine = opened()
    read_all = engine._file.all
    monkeypatch.setattr(engine._file, "all", lambda *given: asked.append(rows := read_all(*given)) or rows)
    with engine.batch():
        for _ in range(10):
            assert engine.read_entries(Entries("entries", 1, descending=True)) == [("0999", "value")]
    assert sum(map(len, asked)) < 100


def test_rows_that_nobody_reads_to_their_end_outlive_their_file(tmp_path):
    """As where Ctrl-C ends a command in the midst of a scan: the file is closed before the scan is."""
    file = StateFile(tmp_path / "state.db")
    rows = file.rows("VALUES (1), (2)")
    assert next(rows) == (1,)
    file.close()
    rows.close()


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_inserted_as_in_memory_whatever_is_there_before(path, seed):
    random, engines = Random(seed), [EmbeddedEngine([SHOP], path), MemoryEngine([SHOP])]
    with closing(engines[0]):
        for _ in range(10):
            with engines[0].batch():
                for _ in range(8):
                    call = any_call(random)
                    file, memory = (call(engine) for engine in engines)
                    assert file == memory
            assert [*engines[0].items(SHOP)] == sorted(engines[1].items(SHOP), key=lambda item: item["PK"]["S"])


def test_rows_that_are_inserted_are_in_the_stream_of_who_reads_them(opened):
    engine = opened()
    with engine.batch():
        engine.insert_rows([ROW, PutRow(("shop", "2", None), {"a": 2})])
    assert [each.record["dynamodb"]["Keys"]["PK"]["S"] for each in engine.pending(10)] == ["1", "2"]


def kept_of(inserted):
    return sorted(inserted.missing), sorted(inserted.known)


def any_call(random):
    """A call that inserts, puts, deletes or reads rows, or that says of a source item that it is gone."""
    some = [("shop", str(number), None) for number in random.choices(range(12), k=6)]
    value, version = random.random(), f"{random.randrange(100):02d}"
    rows = [PutRow(key, {"a": Decimal(str(value)) + place}) for place, key in enumerate(some)]
    unstorable = PutRow(some[0], {"a": int("9" * 39)})
    gone = [(some[0], None, version)]
    calls = {
        "insert": lambda engine: kept_of(engine.insert_rows(rows)),
        "insert one that is refused": lambda engine: kept_of(engine.insert_rows([unstorable, *rows])),
        "put": lambda engine: engine.transact(rows[:1], 0),
        "delete": lambda engine: engine.transact([DeleteRow(some[0])], 0),
        "read": lambda engine: engine.read_rows(some),
        "source": lambda engine: engine.put_sources(gone),
    }
    return calls[random.choice([*calls, "insert", "insert"])]
