"""Documents in a local state, where others write them at the same time, and where deletions are forgotten."""

import pytest

from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.sink import Action
from streamfold.engines import MemoryEngine
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended


class Busy:
    """An engine on which others write a document just before this one is."""

    def __init__(self, writes):
        self.engine = MemoryEngine([])
        self.writes = list(writes)

    def read_state(self, keys, *, consistent=False):
        assert consistent
        return self.engine.read_state(keys)

    def swap_state(self, key, attributes, revision):
        if self.writes:
            LocalIndex(self.engine).bulk([Action("products", "a", self.writes.pop(0), b'{"by":"others"}')])
        return self.engine.swap_state(key, attributes, revision)


def written(engine, version):
    (answer,) = LocalIndex(engine).bulk([Action("products", "a", version, b'{"by":"this"}')])
    return answer


@pytest.mark.parametrize(
    ("others", "status", "held"), [([5], 200, None), ([8], 409, 8), ([7], 409, 7), ([1, 2, 3], 200, None)]
)
def test_of_two_at_once_the_greater_version_wins(others, status, held):
    engine = Busy(others)
    answer = written(engine, 7)
    assert (answer.status, answer.held) == (status, held)
    found = LocalIndex(engine).read("products", ["a"])["a"]
    assert (found.version, found.body["by"]) == ((7, "this") if held is None else (held, "others"))


def test_a_document_that_others_write_at_every_try_comes_again():
    with pytest.raises(Contended):
        written(Busy(range(TRIES_MAX)), 99)


def test_a_deletion_is_remembered_unless_the_index_forgets():
    for forgets, status in ((False, 409), (True, 201)):
        index = LocalIndex(MemoryEngine([]), forgets=forgets)
        index.bulk([Action("products", "a", 7, b"{}"), Action("products", "a", 9, None)])
        assert [answer.status for answer in index.bulk([Action("products", "a", 8, b"{}")])] == [status]


def test_indices_are_apart():
    index, versions = LocalIndex(MemoryEngine([])), {"products": 7, "orders": 3, "orders#2": 4}
    index.bulk([Action(name, "a", version, b"{}") for name, version in versions.items()])
    assert {name: [found.version for found in index.documents(name)] for name in versions} == {
        name: [version] for name, version in versions.items()
    }
