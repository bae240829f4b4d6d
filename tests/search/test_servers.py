"""What only servers do: indices that are not as expected, mappings, limits, a server that is busy, and its death."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.sink import Action, Answer, IndexBusy, TooLarge, send
from streamfold.engines import MemoryEngine
from streamfold.engines.deadline import Deadline
from streamfold.errors import EngineError, EngineUnavailable, EngineUnreachable, Unprocessable, public
from tests.search.conftest import Place
from tests.search.servers import BODY_BYTES_MAX

FLOOD_STAGE = {"index__blocks__read_only_allow_delete": True}


def actions(place, count, size=10, version=1, **body):
    text = json.dumps({"text": "x" * size, **body}).encode()
    return [Action(place.index, f"{number}", version, text) for number in range(count)]


def statuses(answers):
    return [answer.status for answer in answers]


def refused(call, *arguments):
    with pytest.raises(EngineError) as raised:
        call(*arguments)
    assert type(raised.value) is EngineError
    return str(raised.value)


class TestCheck:
    """An alias that hides what is gone is expected, and every other thing is told with what to do."""

    def test_a_filtered_alias_passes(self, remote):
        remote.create()
        remote.sink.check(remote.index)

    def test_a_filter_may_leave_out_more(self, remote):
        remote.create(filtered=False)
        gone, draft = {"exists": {"field": "_sf_gone"}}, {"term": {"stock": 0}}
        for must_not in (gone, [draft, gone]):
            add = {"index": remote.real, "alias": remote.index, "filter": {"bool": {"must_not": must_not}}}
            remote.server.ask("POST", "/_aliases", {"actions": [{"add": add}]})
            remote.sink.checked.clear()
            remote.sink.check(remote.index)

    def test_a_missing_alias(self, remote):
        message = f"Alias '{remote.index}' does not exist. Expected one: streamfold search create INDEX makes it."
        assert refused(remote.sink.check, remote.index) == message

    @pytest.mark.parametrize(
        "other", [None, {"term": {"stock": 0}}, {"bool": {"must": {"exists": {"field": "stock"}}}}]
    )
    def test_an_alias_without_the_filter(self, remote, other):
        remote.create(filtered=False)
        add = {"index": remote.real, "alias": remote.index} | ({"filter": other} if other else {})
        remote.server.ask("POST", "/_aliases", {"actions": [{"add": add}]})
        message = f"Alias '{remote.index}' has no filter on {remote.real}: searches would show documents of items that"
        assert refused(remote.sink.check, remote.index).startswith(message)

    def test_an_index_instead_of_the_alias(self, remote):
        remote.create(alias=False)
        message = f"'{remote.real}' is an index, and has to be an alias: searches would show documents of items that"
        assert refused(remote.sink.check, remote.real).startswith(message)

    def test_an_alias_of_two_indices(self, remote):
        remote.create()
        both = Place(remote.sink, remote.server)
        both.create(alias=False)
        remote.server.ask("POST", "/_aliases", {"actions": [{"add": {"index": both.real, "alias": remote.index}}]})
        names = ", ".join(sorted([both.real, remote.real]))
        message = f"Alias '{remote.index}' points to the indices {names}, and none is the one to write to. Expected"
        assert refused(remote.sink.check, remote.index).startswith(message)
        told = refused(remote.sink.bulk, actions(remote, 1))
        assert told.startswith(
            f"Alias '{remote.index}' at {remote.server.url} takes no documents: illegal_argument_exc"
        )
        both.remove()


class TestIndex:
    """An index that takes no documents stops the run: it is no fault of a document."""

    def test_a_missing_alias(self, remote):
        for call in (remote.sink.bulk, lambda one: remote.sink.read(one[0].index, ["0"])):
            told = refused(call, actions(remote, 1))
            assert "streamfold search create INDEX makes it." in told
        assert "does not exist" in refused(lambda: list(remote.sink.documents(remote.index)))

    def test_an_index_is_never_made_or_written_without_its_alias(self, remote):
        remote.create(alias=False)
        told = refused(remote.sink.bulk, [Action(remote.real, "0", 1, b"{}")])
        assert "index_not_found_exception" in told
        assert remote.server.ask("GET", f"/{remote.real}/_count")["count"] == 0

    @pytest.mark.parametrize("block", ["write", "read_only"])
    def test_an_index_that_is_blocked(self, remote, block):
        remote.create()
        remote.set(**{f"index__blocks__{block}": True})
        told = refused(remote.sink.bulk, actions(remote, 2))
        assert told.startswith(
            f"Alias '{remote.index}' at {remote.server.url} takes no documents: cluster_block_except"
        )
        assert told.endswith("take its block away (index.blocks.write, index.blocks.read_only).")
        remote.set(**{f"index__blocks__{block}": False})
        assert statuses(remote.sink.bulk(actions(remote, 2))) == [201, 201]

    def test_an_index_that_is_closed(self, remote):
        remote.create()
        remote.server.ask("POST", f"/{remote.real}/_close")
        assert refused(remote.sink.bulk, actions(remote, 1)).endswith("Expected an open index: open it.")

    def test_one_missing_index_is_told_beside_others(self, remote):
        remote.create()
        told = refused(remote.sink.bulk, [*actions(remote, 1), Action("nowhere", "0", 1, b"{}")])
        assert told.startswith("Alias 'nowhere' at ")


class TestMapping:
    """A document that does not fit the mapping is refused alone."""

    def test_the_others_are_written(self, remote):
        remote.create()
        bodies = [b'{"stock":1}', b'{"stock":"secret"}', b'{"stock":3}']
        answers = remote.sink.bulk([Action(remote.index, f"{number}", 1, body) for number, body in enumerate(bodies)])
        assert statuses(answers) == [201, 400, 201]
        assert "failed to parse field [stock] of type [long]" in answers[1].reason

    def test_numbers_beyond_the_type_are_refused_with_advice_and_told_apart(self, remote):
        remote.create()
        bodies = [b'{"stock":%d}' % number for number in (2**63 - 1, 2**63, 10**37)]
        several = [Action(remote.index, f"{number}", 1, body) for number, body in enumerate(bodies)]
        sent = send(remote.sink, several, Deadline())
        assert [each.answer for each in sent] == [Answer(201), None, None]
        assert isinstance(sent[2].error, Unprocessable)
        assert "out of range" in str(sent[2].error)
        assert str(10**37) not in public(sent[2].error.marked)

    def test_what_is_not_mapped_is_kept_as_it_is(self, remote):
        remote.create()
        body = b'{"other":{"n":1.10,"m":12345678901234567890123456789012345678}}'
        remote.sink.bulk([Action(remote.index, "0", 1, body)])
        text = str(remote.sink.read(remote.index, ["0"])["0"].body)
        assert text == "{'other': {'n': Decimal('1.10'), 'm': 12345678901234567890123456789012345678}}"


class TestDeletions:
    """A deletion is remembered for ``index.gc_deletes`` only, which is why the framework hides documents."""

    def test_a_deletion_is_forgotten_as_the_local_index_forgets_it(self, remote):
        remote.create(**{"index.gc_deletes": "1s"})
        one = Action(remote.index, "0", 5, b"{}")
        forgets = LocalIndex(MemoryEngine([]), forgets=True)
        for sink in (remote.sink, forgets):
            assert statuses(sink.bulk([one, Action(remote.index, "0", 9, None)])) == [201, 200]
        assert statuses(remote.sink.bulk([one])) == [409]
        deadline = time.monotonic() + 30
        while remote.sink.bulk([one])[0].status == 409 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [statuses(sink.bulk([one])) for sink in (remote.sink, forgets)] == [[409], [201]]
        assert remote.sink.bulk([one])[0].held == 5


class TestLimits:
    """Requests that are too large, and documents that never fit."""

    def test_a_request_over_the_limit(self, remote):
        remote.create()
        with pytest.raises(TooLarge):
            remote.sink.bulk(actions(remote, 3, size=BODY_BYTES_MAX // 2))
        assert remote.sink.read(remote.index, ["0"]) == {}

    def test_what_is_too_large_is_sent_in_parts_and_a_document_over_the_limit_is_given_up(self, remote):
        remote.create()
        several = [*actions(remote, 40, size=BODY_BYTES_MAX // 10), Action(remote.index, "large", 1, large())]
        sent = send(remote.sink, several, Deadline(), 100_000_000)
        assert all(each.answer == Answer(201) for each in sent[:40])
        assert str(sent[40].error).startswith(f"The document has {len(large())} bytes and is over the server's limit")


class TestBusy:
    """A server that is busy gets the same documents again, later."""

    def test_an_index_at_the_flood_stage_of_its_disk(self, remote):
        remote.create()
        remote.set(**FLOOD_STAGE)
        answers = remote.sink.bulk(actions(remote, 2))
        assert statuses(answers) == [429, 429]
        assert "flood-stage" in answers[0].reason

        def make_room(_seconds):
            remote.set(**dict.fromkeys(FLOOD_STAGE, False))

        sent = send(remote.sink, actions(remote, 2), Deadline(pause=make_room))
        assert [each.answer for each in sent] == [Answer(201)] * 2

    def test_an_index_that_stays_so_is_reported_and_never_given_up(self, remote):
        remote.create()
        remote.set(**FLOOD_STAGE)
        sent = send(remote.sink, actions(remote, 2), Deadline(pause=lambda _: None))
        assert {type(each.error) for each in sent} == {EngineUnavailable}
        assert "flood-stage" in str(sent[0].error)

    def test_a_whole_request_is_refused_and_smaller_ones_are_taken(self, remote):
        remote.create()
        limit = {"transient": {"network.breaker.inflight_requests.limit": "300kb"}}
        remote.server.ask("PUT", "/_cluster/settings", limit)
        try:
            with pytest.raises(IndexBusy, match="429 circuit_breaking_exception"):
                remote.sink.bulk(actions(remote, 40, size=10_000))
            sent = send(remote.sink, actions(remote, 40, size=10_000), Deadline(pause=lambda _: None))
        finally:
            limit["transient"] = dict.fromkeys(limit["transient"])
            remote.server.ask("PUT", "/_cluster/settings", limit)
        assert [each.answer for each in sent] == [Answer(201)] * 40
        assert not any(each.uncertain for each in sent)


class TestDeath:
    """A server that is killed keeps what it answered for, and is waited for."""

    def test_it_is_waited_for_and_what_was_answered_is_there_again(self, remote):
        remote.create()
        remote.sink.bulk([*actions(remote, 3, version=7), Action(remote.index, "2", 8, None)])
        remote.server.kill()
        with pytest.raises(EngineUnavailable):
            remote.sink.bulk(actions(remote, 3, version=8))
        with pytest.raises(EngineUnreachable):
            remote.sink.bulk(actions(remote, 3, version=8))
        pauses = []

        def pause(seconds):
            if not pauses:
                remote.server.start(thread_pool__write__size=1, thread_pool__write__queue_size=1)
            pauses.append(seconds)

        sent = send(remote.sink, actions(remote, 4, version=7), Deadline(pause=pause))
        assert [(each.answer.status, each.answer.held) for each in sent] == [(409, 7), (409, 7), (409, 8), (201, None)]
        self.refuses_what_its_queue_has_no_room_for(remote)
        remote.server.stop()
        remote.server.start()

    def refuses_what_its_queue_has_no_room_for(self, remote):
        """Single documents are answered 429 while others are written, and all get through in the end."""
        many = Place(remote.sink, remote.server).create()

        def write(worker):
            several = [Action(many.index, f"{worker}-{number}", 1, b'{"stock":1}') for number in range(20)]
            refusals = sum(answer.status == 429 for _ in range(5) for answer in remote.sink.bulk(several))
            sent = send(remote.sink, several, Deadline())
            return refusals, {(each.answer.status, each.answer.held) for each in sent}

        with ThreadPoolExecutor(12) as workers:
            found = list(workers.map(write, range(12)))
        assert sum(refusals for refusals, _ in found) > 0
        assert set().union(*(outcomes for _, outcomes in found)) <= {(201, None), (409, 1)}
        many.refresh()
        assert len(list(remote.sink.documents(many.index))) == 12 * 20
        many.remove()


def large():
    return json.dumps({"text": "x" * BODY_BYTES_MAX}).encode()


def test_messages_quote_no_document(remote):
    remote.create()
    remote.set(index__blocks__write=True)
    with pytest.raises(EngineError) as raised:
        remote.sink.bulk([Action(remote.index, "secret-1", 1, b'{"title":"secret"}')])
    assert "secret" not in str(raised.value)
    assert re.search(r"takes no documents: cluster_block_exception \(\.\.\.\)", public(raised.value.marked))
