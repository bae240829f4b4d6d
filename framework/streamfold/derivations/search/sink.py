"""The interface of an index for search: a few calls, each answered for every document, with external versions.

``LocalIndex`` keeps documents in a local state, ``OpenSearchIndex`` sends them to a server. One contract test runs over
both (``tests/search/test_sink.py``).
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from streamfold.derivations.search.options import GONE
from streamfold.engines.deadline import Deadline
from streamfold.errors import EngineUnavailable, EngineUnreachable, Unprocessable, redacted, shortened

ID_BYTES_MAX = 512
"""Length of a document's id. A longer one fails its whole request (OpenSearch, RestIndexAction; measured on
2.19.6 and 3.6.0)."""
VERSION_MAX = 2**63 - 1
"""The largest external version (OpenSearch, ``version_type=external``)."""
CONFLICT = 409
"""The status of a document of which the index holds the same version or a newer one."""
BUSY = 429
"""The status of a document, or of a request, for which the server is too busy."""
VISIBLE = {"bool": {"must_not": [{"exists": {"field": GONE}}]}}
"""The filter of an alias that hides documents that are gone."""

TRIES = 8
"""Times that a document is sent to a busy server, and that a server without an answer is called; then the records are
redelivered."""
ACTIONS_MAX = 1000
"""Documents of one request."""
BYTES_MAX = 5_000_000
"""Size of one request: half of the smallest limit of a domain's instances. One over the limit is halved."""
LINE_BYTES = 128
"""A lower bound of the bytes sent beside a document, its id and its index (``opensearch.encoded``)."""
SETTLED = (200, 201, 404, CONFLICT)


class TooLarge(Exception):  # noqa: N818 - an outcome, not a mistake
    """A request was larger than the server takes (HTTP 413); a smaller one may be taken."""


class IndexBusy(EngineUnavailable):  # an outcome, not a mistake
    """A busy server refused a whole request (HTTP 429): nothing of it was written. A smaller one may be taken."""


@dataclass(frozen=True, slots=True)
class Action:
    """The write or deletion of one document in one version."""

    index: str  # the real name of the alias or index
    id: str
    version: int
    body: bytes | None  # the document as JSON in UTF-8; None: deleted


class Answer(NamedTuple):
    """The answer to one action."""

    status: int  # as in HTTP: 200 and 201 written, 404 nothing to delete, 409 a newer version is stored
    reason: str = ""  # why it was refused, in the server's words
    held: int | None = None  # in conflict: the version that the index holds

    @property
    def is_done(self) -> bool:
        return self.status in (200, 201, 404)


class Found(NamedTuple):
    """A document as the index holds it."""

    id: str
    version: int
    body: dict[str, Any]  # numbers as int or Decimal


class Sink(Protocol):
    """The target of documents."""

    def check(self, index: str) -> None:
        """Raises ``EngineError`` unless this is an alias that hides gone documents. A good alias is checked once."""
        ...

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        """Writes documents in one request; the answers are in the order of the actions.

        An action takes effect if its version is greater than the one that the index holds. Raises ``TooLarge``;
        ``EngineUnavailable`` if the outcome is unknown or the server is busy (429, 5xx, no answer); ``EngineError`` if
        no retry helps: refused credentials, a missing index.
        """
        ...

    def read(self, index: str, ids: Collection[str]) -> dict[str, Found]:
        """The documents of these ids that the index holds, hidden ones among them; real-time. Raises as ``bulk``."""
        ...

    def documents(self, index: str, *, hidden: bool = False) -> Iterator[Found]:
        """The documents of an index, each once, as searches see them; with ``hidden``, those that are hidden too."""
        ...


class Sent(NamedTuple):
    """The result of an action: an answer or an error."""

    answer: Answer | None = None
    error: Exception | None = None  # Unprocessable: never taken; EngineUnavailable: not known, or not begun
    uncertain: bool = False  # an earlier request with it had no answer: it may have taken effect then

    @property
    def is_done(self) -> bool:
        return self.answer is not None and self.answer.is_done


def send(
    sink: Sink, actions: Sequence[Action], deadline: Deadline, bytes_max: int = BYTES_MAX, tries: int = TRIES
) -> list[Sent]:
    """Sends actions until each is done, or the time is over; returns the results, in order.

    ``bytes_max`` is the size of one request. Raises ``EngineError`` if no retry helps.
    """
    return _Sending(sink, actions, deadline, bytes_max, tries).send()


class _Sending:
    """The state of one ``send``."""

    def __init__(self, sink: Sink, actions: Sequence[Action], deadline: Deadline, bytes_max: int, tries: int) -> None:
        self.sink = sink
        self.actions = actions
        self.deadline = deadline
        self.tries = tries
        self.bytes_max = bytes_max  # halved when the server takes no more
        self.actions_max = ACTIONS_MAX  # the same
        self.sent: dict[int, Sent] = {}
        self.uncertain: set[int] = set()
        self.refused: dict[int, Answer] = {}  # the last answers of a busy server
        self.failures = 0  # requests in a row that had no answer

    def send(self) -> list[Sent]:
        error: Exception | None = None
        try:
            self._rounds()
        except EngineUnavailable as unavailable:
            error = unavailable
        return [self._outcome(number, error) for number in range(len(self.actions))]

    def _rounds(self) -> None:
        """Sends all actions, then again those for which the server was too busy."""
        waiting = list(range(len(self.actions)))
        for number in range(self.tries):
            if number:
                self.deadline.back_off(number - 1, throttled=True)
            self._round(deque(waiting))
            waiting = sorted(self.refused)
            if not waiting:
                return

    def _round(self, queue: deque[int]) -> None:
        self.refused.clear()
        while queue:
            self.deadline.begin()
            bulk = self._taken(queue)
            try:
                answers = self.sink.bulk([self.actions[number] for number in bulk])
            except TooLarge as refused:
                self._shrink(bulk, queue, refused)
            except EngineUnavailable as error:
                queue.extendleft(reversed(bulk))
                self._failed(bulk, error)
            else:
                self.failures = 0
                for number, answer in zip(bulk, answers, strict=True):
                    self._settle(number, answer)

    def _taken(self, queue: deque[int]) -> list[int]:
        """The next actions for one request: at least one."""
        bulk = [queue.popleft()]
        size = _bytes(self.actions[bulk[0]])
        while queue and len(bulk) < self.actions_max:
            size += _bytes(self.actions[queue[0]])
            if size > self.bytes_max:
                break
            bulk.append(queue.popleft())
        return bulk

    def _shrink(self, bulk: list[int], queue: deque[int], refused: TooLarge) -> None:
        """Halves a request that was too large; a single document is given up."""
        if len(bulk) > 1:
            queue.extendleft(reversed(bulk))
            self._halve(bulk)
            return
        action = self.actions[bulk[0]]
        self._give_up(
            bulk[0],
            Unprocessable(
                f"The document has {len(action.body or b'')} bytes and is over the server's limit for a request: "
                f"{refused} Keep less in the document, or raise http.max_content_length."
            ),
        )

    def _failed(self, bulk: list[int], error: EngineUnavailable) -> None:
        """Notes a request without an answer. Raises the error after several of them in a row."""
        if isinstance(error, IndexBusy):
            self._halve(bulk)
        elif not isinstance(error, EngineUnreachable):
            self.uncertain.update(bulk)
        self.failures += 1
        if self.failures >= self.tries:
            raise error
        self.deadline.back_off(self.failures - 1, throttled=True)

    def _halve(self, bulk: Sequence[int]) -> None:
        self.actions_max = max(len(bulk) // 2, 1)
        self.bytes_max = max(sum(_bytes(self.actions[number]) for number in bulk) // 2, 1)

    def _settle(self, number: int, answer: Answer) -> None:
        if answer.status in SETTLED:
            self.sent[number] = Sent(answer, uncertain=number in self.uncertain)
        elif answer.status == BUSY or answer.status >= 500:
            self.refused[number] = answer
            if answer.status != BUSY:
                self.uncertain.add(number)
        else:
            reason = f"{answer.status}: {redacted(shortened(answer.reason))}"
            self._give_up(number, Unprocessable(f"OpenSearch refused the document ({reason}). {ADVICE}"))

    def _give_up(self, number: int, error: Exception) -> None:
        self.sent[number] = Sent(error=error, uncertain=number in self.uncertain)

    def _outcome(self, number: int, error: Exception | None) -> Sent:
        """The result of an action; the reason if it is not done."""
        if number in self.sent:
            return self.sent[number]
        if (answer := self.refused.get(number)) is not None:
            reason = f"{answer.status}: {redacted(shortened(answer.reason))}"
            error = EngineUnavailable(f"OpenSearch was too busy for the document ({reason}); it is redelivered.")
        return Sent(error=error, uncertain=number in self.uncertain)


ADVICE = (
    "Expected values that the index's mapping takes: change the handler or the mapping. Whole numbers beyond 2^63-1 go "
    "into a field of type keyword."
)


def _bytes(action: Action) -> int:
    return LINE_BYTES + len(action.index) + len(action.id) + len(action.body or b"")
