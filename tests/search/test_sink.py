"""What every sink does alike: one contract over local states and the servers that OpenSearch has released."""

import json
from decimal import Decimal

import pytest

from streamfold.derivations.search.sink import ID_BYTES_MAX, VERSION_MAX, Action, Answer, Found
from streamfold.errors import EngineError
from tests.search.conftest import SERVERS

HIDDEN = b'{"_sf_gone":true,"_sf_at":1790000000000}'
DIGITS_38 = "12345678901234567890123456789012345678"


def write(place, name, version, body=b"{}"):
    """Writes one document; returns its answer."""
    (answer,) = place.sink.bulk([Action(place.index, name, version, body)])
    return answer


def delete(place, name, version):
    return write(place, name, version, None)


def read(place, name):
    return place.sink.read(place.index, [name]).get(name)


def statuses(place, *actions):
    return [answer.status for answer in place.sink.bulk([Action(place.index, *action) for action in actions])]


class TestVersions:
    """An action takes effect if its version is greater than the one that the index holds."""

    def test_a_document_is_written_and_read(self, place):
        assert write(place, "a", 7, b'{"title":"Tea"}') == Answer(201)
        assert read(place, "a") == Found("a", 7, {"title": "Tea"})

    def test_a_newer_one_replaces_it_whole(self, place):
        write(place, "a", 7, b'{"title":"Tea","price":3}')
        assert write(place, "a", 8, b'{"title":"Tee"}') == Answer(200)
        assert read(place, "a") == Found("a", 8, {"title": "Tee"})

    @pytest.mark.parametrize("version", [0, 6, 7])
    def test_an_older_or_equal_one_is_told_which_version_is_there(self, place, version):
        write(place, "a", 7, b'{"title":"Tea"}')
        answer = write(place, "a", version, b'{"title":"old"}')
        assert (answer.status, answer.held, answer.is_done) == (409, 7, False)
        assert "current version [7]" in answer.reason
        assert read(place, "a") == Found("a", 7, {"title": "Tea"})

    def test_the_first_version_may_be_0_and_the_last_is_held_exactly(self, place):
        assert write(place, "a", 0).status == 201
        assert write(place, "a", VERSION_MAX - 1).status == 200
        assert write(place, "a", VERSION_MAX).status == 200
        assert write(place, "a", VERSION_MAX).held == VERSION_MAX
        assert read(place, "a").version == VERSION_MAX

    @pytest.mark.parametrize("version", [-1, VERSION_MAX + 1])
    def test_a_version_that_is_none_fails_the_request_and_nothing_is_written(self, place, version):
        with pytest.raises(EngineError, match=str(version)):
            statuses(place, ("a", 1, b"{}"), ("b", version, b"{}"))
        assert read(place, "a") is None

    def test_the_later_of_two_in_one_request_is_decided_by_its_version(self, place):
        assert statuses(place, ("a", 2, b'{"n":2}'), ("a", 1, b'{"n":1}'), ("a", 3, b'{"n":3}')) == [201, 409, 200]
        assert read(place, "a") == Found("a", 3, {"n": 3})


class TestDeletions:
    """A deletion has a version too, and the index remembers it."""

    def test_a_newer_deletion_removes_the_document(self, place):
        write(place, "a", 7)
        assert delete(place, "a", 8) == Answer(200)
        assert read(place, "a") is None

    @pytest.mark.parametrize("version", [6, 7])
    def test_an_older_or_equal_deletion_is_told_which_version_is_there(self, place, version):
        write(place, "a", 7)
        answer = delete(place, "a", version)
        assert (answer.status, answer.held) == (409, 7)
        assert read(place, "a") is not None

    def test_a_deletion_of_what_never_was_is_done_and_remembered(self, place):
        answer = delete(place, "a", 5)
        assert (answer.status, answer.is_done) == (404, True)
        assert write(place, "a", 4)[:1] + write(place, "a", 5)[:1] == (409, 409)
        assert write(place, "a", 5).held == 5
        assert write(place, "a", 6) == Answer(201)

    def test_an_older_write_does_not_bring_back_what_was_deleted(self, place):
        write(place, "a", 7)
        delete(place, "a", 9)
        assert write(place, "a", 8).held == 9
        assert read(place, "a") is None
        assert write(place, "a", 10) == Answer(201)

    def test_a_deletion_is_raised_by_a_newer_one(self, place):
        delete(place, "a", 5)
        assert delete(place, "a", 8).status == 404
        assert delete(place, "a", 7).held == 8
        assert write(place, "a", 6).held == 8


class TestDocuments:
    """What a document may hold, and what is refused alone."""

    @pytest.mark.parametrize(
        "body", [b'{"n":', b"[1]", b"null", b"", b'{"n":NaN}', b'{"n":"\xff"}', b"{} {}"], ids=repr
    )
    def test_a_bad_document_is_refused_and_the_others_are_written(self, place, body):
        assert statuses(place, ("a", 1, b"{}"), ("b", 1, body), ("c", 1, b"{}")) == [201, 400, 201]
        assert place.sink.read(place.index, ["a", "b", "c"]).keys() == {"a", "c"}

    def test_an_empty_id_is_refused_alone(self, place):
        assert statuses(place, ("a", 1, b"{}"), ("", 1, b"{}")) == [201, 400]

    def test_a_refused_document_leaves_the_older_one(self, place):
        write(place, "a", 7, b'{"title":"Tea"}')
        answer = write(place, "a", 8, b'{"title":')
        assert answer.reason
        assert read(place, "a") == Found("a", 7, {"title": "Tea"})
        assert write(place, "a", 8).status == 200

    @pytest.mark.parametrize(
        "digits",
        [DIGITS_38, f"-0.{DIGITS_38}", "1.10", "100.00", "0.0", "1E-130", "9.99E+125", "-1", "0", "9007199254740993"],
    )
    def test_the_digits_of_a_number_are_kept(self, place, digits):
        write(place, "a", 1, b'{"n":%s,"in":[{"n":%s}]}' % (digits.encode(), digits.encode()))
        body = read(place, "a").body
        for found in (body["n"], body["in"][0]["n"]):
            assert (str(found), type(found)) == (digits, int if digits.lstrip("-").isdigit() else Decimal)

    def test_text_of_every_script_is_kept(self, place):
        body = {"title": "grün € 茶 \U0001f375 \u2028 \x7f", "": None} | {"empty": "", "line": 'a\n"b"\t\\'}
        del body[""]
        write(place, "a", 1, json.dumps(body, ensure_ascii=False).encode())
        assert read(place, "a").body == body

    def test_a_document_may_be_empty_and_nested(self, place):
        body = {"empty": {}, "list": [], "deep": [[{"a": [None, True]}]]}
        assert statuses(place, ("a", 1, b"{}"), ("b", 1, json.dumps(body, indent=1).encode())) == [201, 201]
        assert (read(place, "a").body, read(place, "b").body) == ({}, body)

    @pytest.mark.parametrize("name", ["ORDER#1|LINE#2", "grün/茶?&=%2F", 'a"b\\c', "two\nlines", " ", ".", "é" * 256])
    def test_an_id_may_hold_anything(self, place, name):
        assert write(place, name, 1).status == 201
        assert write(place, name, 1).held == 1
        assert read(place, name) == Found(name, 1, {})
        assert delete(place, name, 2).status == 200

    def test_an_id_that_is_too_long_fails_the_request_and_nothing_is_written(self, place):
        assert len(("é" * 256).encode()) == ID_BYTES_MAX
        with pytest.raises(EngineError, match="ééé") as raised:
            statuses(place, ("a", 1, b"{}"), ("é" * 257, 1, b"{}"))
        assert "é" not in raised.value.marked.partition("\ufdd0")[0]
        assert read(place, "a") is None

    def test_a_large_bulk_is_answered_in_its_order(self, place):
        body = json.dumps({"text": "x" * 500}).encode()
        actions = [(f"{number}", 1, body if number % 100 else b"{") for number in range(1000)]
        assert statuses(place, *actions) == [201 if number % 100 else 400 for number in range(1000)]

    def test_nothing_to_send_is_nothing(self, place):
        assert place.sink.bulk([]) == []


class TestReads:
    """What readers see, with and without what is hidden."""

    def test_a_filtered_alias_is_what_is_expected(self, place):
        place.sink.check(place.index)

    def test_a_read_sees_at_once_what_was_written_and_hidden(self, place):
        write(place, "a", 1, b'{"title":"Tea"}')
        write(place, "b", 2, HIDDEN)
        delete(place, "c", 3)
        found = place.sink.read(place.index, ["a", "b", "c", "d"])
        assert found == {
            "a": Found("a", 1, {"title": "Tea"}),
            "b": Found("b", 2, {"_sf_gone": True, "_sf_at": 1790000000000}),
        }

    def test_many_are_read_together(self, place):
        names = [f"{number:03}" for number in range(250)]
        statuses(place, *((name, 1, b"{}") for name in names))
        assert place.sink.read(place.index, names).keys() == set(names)
        assert place.sink.read(place.index, []) == {}

    def test_all_documents_are_found_once_each(self, place):
        bodies = {f"{number}": HIDDEN if number % 3 == 0 else b'{"n":%d.0}' % number for number in range(700)}
        statuses(place, *((name, 5, body) for name, body in bodies.items()))
        statuses(place, *((name, 6, bodies[name]) for name in ("1", "2", "3")), ("4", 6, None))
        place.refresh()
        seen = list(place.sink.documents(place.index))
        every = list(place.sink.documents(place.index, hidden=True))
        shown = {name for name, body in bodies.items() if body is not HIDDEN} - {"4"}
        assert sorted(document.id for document in seen) == sorted(shown)
        assert sorted(document.id for document in every) == sorted(bodies.keys() - {"4"})
        assert {document.version for document in seen} == {5, 6}
        assert str(next(document for document in seen if document.id == "7").body["n"]) == "7.0"

    def test_an_index_without_documents_has_none(self, place):
        assert list(place.sink.documents(place.index)) == []

    def test_a_search_may_stop_early(self, place):
        statuses(place, *((f"{number}", 1, b"{}") for number in range(300)))
        place.refresh()
        found = place.sink.documents(place.index)
        assert next(found).version == 1
        found.close()


@pytest.mark.parametrize("version", SERVERS)
def test_documents_on_several_shards_are_found_once_each(servers, open_sink, version):
    from tests.search.conftest import Place

    server = servers(version)
    place = Place(open_sink(server), server).create(shards=5)
    statuses(place, *((f"{number}", 1, b"{}") for number in range(900)))
    place.refresh()
    found = [document.id for document in place.sink.documents(place.index)]
    assert sorted(found) == sorted(f"{number}" for number in range(900))
    place.remove()
