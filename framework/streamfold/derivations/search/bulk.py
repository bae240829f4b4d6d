"""Sends documents in requests that the server takes, and again until each has an answer or the time is over."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from streamfold.derivations.search.sink import BUSY, CONFLICT, Action, Answer, IndexBusy, Sink, TooLarge
from streamfold.errors import EngineUnavailable, EngineUnreachable, Unprocessable, shortened, told
from streamfold.run import Run

TRIES = 8
"""Times that a document is sent which the server refuses because it is busy, and that a server is asked which does not
answer; then the records come again."""
ACTIONS_MAX = 1000
"""Documents of one request."""
LINE_BYTES = 128
"""At least what is sent beside a document, its id and its index (``opensearch.encoded``)."""
SETTLED = (200, 201, 404, CONFLICT)


class Sent(NamedTuple):
    """What became of an action: an answer or an error."""

    answer: Answer | None = None
    error: Exception | None = None  # Unprocessable: never taken; EngineUnavailable: not known, or not begun
    uncertain: bool = False  # an earlier request with it had no answer: it may have taken effect then

    @property
    def is_done(self) -> bool:
        return self.answer is not None and self.answer.is_done


def send(
    sink: Sink, actions: Sequence[Action], run: Run, bytes_max: int | None = None, tries: int = TRIES
) -> list[Sent]:
    """Sends actions until each is settled, or the time of the run is over; returns what became of each, in order.

    ``bytes_max`` is the size of one request; the setting ``search_bulk_bytes`` by default. Raises ``EngineError``
    where no other try helps.
    """
    return _Sending(sink, actions, run, bytes_max or run.settings.search_bulk_bytes, tries).send()


class _Sending:
    """The state of one ``send``."""

    def __init__(self, sink: Sink, actions: Sequence[Action], run: Run, bytes_max: int, tries: int) -> None:
        self.sink = sink
        self.actions = actions
        self.run = run
        self.tries = tries
        self.bytes_max = bytes_max  # halved when the server takes no more
        self.actions_max = ACTIONS_MAX  # the same
        self.sent: dict[int, Sent] = {}
        self.uncertain: set[int] = set()
        self.refused: dict[int, Answer] = {}  # the last answers of a server that is busy
        self.failures = 0  # requests in a row that had no answer

    def send(self) -> list[Sent]:
        error: Exception | None = None
        try:
            self._rounds()
        except EngineUnavailable as unavailable:
            error = unavailable
        return [self._outcome(number, error) for number in range(len(self.actions))]

    def _rounds(self) -> None:
        """Sends all actions, then those again that the server was too busy for."""
        waiting = list(range(len(self.actions)))
        for number in range(self.tries):
            if number:
                self.run.back_off(number - 1, throttled=True)
            self._round(deque(waiting))
            waiting = sorted(self.refused)
            if not waiting:
                return

    def _round(self, queue: deque[int]) -> None:
        self.refused.clear()
        while queue:
            self.run.begin()
            chunk = self._taken(queue)
            try:
                answers = self.sink.bulk([self.actions[number] for number in chunk])
            except TooLarge as refused:
                self._shrink(chunk, queue, refused)
            except EngineUnavailable as error:
                queue.extendleft(reversed(chunk))
                self._failed(chunk, error)
            else:
                self.failures = 0
                for number, answer in zip(chunk, answers, strict=True):
                    self._settle(number, answer)

    def _taken(self, queue: deque[int]) -> list[int]:
        """The next actions that one request takes: one at least."""
        chunk = [queue.popleft()]
        size = _bytes(self.actions[chunk[0]])
        while queue and len(chunk) < self.actions_max:
            size += _bytes(self.actions[queue[0]])
            if size > self.bytes_max:
                break
            chunk.append(queue.popleft())
        return chunk

    def _shrink(self, chunk: list[int], queue: deque[int], refused: TooLarge) -> None:
        """After a request that was too large; a single document is given up."""
        if len(chunk) > 1:
            queue.extendleft(reversed(chunk))
            self._halve(chunk)
            return
        action = self.actions[chunk[0]]
        self._settle_with(
            chunk[0],
            Unprocessable(
                f"The document has {len(action.body or b'')} bytes and is over the server's limit for a request: "
                f"{refused} Keep less in the document, or raise http.max_content_length."
            ),
        )

    def _failed(self, chunk: list[int], error: EngineUnavailable) -> None:
        """After a request without an answer. Raises the error after so many of them in a row."""
        if isinstance(error, IndexBusy):
            self._halve(chunk)
        elif not isinstance(error, EngineUnreachable):
            self.uncertain.update(chunk)
        self.failures += 1
        if self.failures >= self.tries:
            raise error
        self.run.back_off(self.failures - 1, throttled=True)

    def _halve(self, chunk: Sequence[int]) -> None:
        self.actions_max = max(len(chunk) // 2, 1)
        self.bytes_max = max(sum(_bytes(self.actions[number]) for number in chunk) // 2, 1)

    def _settle(self, number: int, answer: Answer) -> None:
        if answer.status in SETTLED:
            self.sent[number] = Sent(answer, uncertain=number in self.uncertain)
        elif answer.status == BUSY or answer.status >= 500:
            self.refused[number] = answer
            if answer.status != BUSY:
                self.uncertain.add(number)
        else:
            reason = f"{answer.status}: {told(shortened(answer.reason))}"
            self._settle_with(number, Unprocessable(f"OpenSearch refused the document ({reason}). {ADVICE}"))

    def _settle_with(self, number: int, error: Exception) -> None:
        self.sent[number] = Sent(error=error, uncertain=number in self.uncertain)

    def _outcome(self, number: int, error: Exception | None) -> Sent:
        """What became of an action; of one that is not settled, why."""
        if number in self.sent:
            return self.sent[number]
        if (answer := self.refused.get(number)) is not None:
            reason = f"{answer.status}: {told(shortened(answer.reason))}"
            error = EngineUnavailable(f"OpenSearch was too busy for the document ({reason}); the record comes again.")
        return Sent(error=error, uncertain=number in self.uncertain)


ADVICE = (
    "Expected values that the index's mapping takes: change the handler or the mapping. Whole numbers beyond 2^63-1 go "
    "into a field of type keyword."
)


def _bytes(action: Action) -> int:
    """About the size of an action in a request."""
    return LINE_BYTES + len(action.index) + len(action.id) + len(action.body or b"")
