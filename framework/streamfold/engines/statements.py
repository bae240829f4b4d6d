"""Statements and calls with one write each, many together: a response for each, and none is lost for another's sake."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.dynamodb_client import Calls, marked_message
from streamfold.engines.requests import Statement
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.settings.limits import STATEMENTS_MAX
from streamfold.writes.guarded import CONFLICT, RowKey, StateKey

T = TypeVar("T")
AnyKey = TypeVar("AnyKey", RowKey, StateKey)
Answered = Mapping[str, Any]
"""The response to one statement."""
BUSY = (*CONFLICT, "RequestLimitExceeded", "InternalServerError")
"""Codes after which another try may help."""


def cut(values: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some


def code(answer: Answered) -> str | None:
    """The code of a statement's error; None if it was carried out."""
    found: str | None = answer.get("Error", {}).get("Code")
    return found


class Statements(Calls):
    """Sends PartiQL statements, and requests in the place of those that no statement can express."""

    def _execute(self, statements: Mapping[AnyKey, Statement]) -> dict[AnyKey, Answered]:
        calls = cut(statements, STATEMENTS_MAX)
        return self._retried(calls, lambda keys: self._responses([statements[key] for key in keys]))

    def _execute_singly(self, operation: str, requests: Mapping[RowKey, Statement]) -> dict[RowKey, Answered]:
        """The last response to each request, as from ``_execute``: for rows that no PartiQL statement can name."""

        def responses(keys: list[RowKey]) -> list[Answered]:
            return [self._answer(getattr(self._client(key), operation), requests[key]) for key in keys]

        return self._retried(cut(requests, 1), responses)

    def _retried(
        self, calls: Iterable[list[AnyKey]], ask: Callable[[list[AnyKey]], list[Answered]]
    ) -> dict[AnyKey, Answered]:
        """The last response for each key; none for keys without a call, or with an uncertain one. Busy items are tried
        again. Once one is busy at every try, the rest is tried once, so that pauses do not add up.
        """
        responses: dict[AnyKey, Answered] = {}
        tries_max = TRIES_MAX
        try:
            for keys in calls:
                for _ in self.deadline.tries(tries_max):
                    responses.update(zip(keys, ask(keys), strict=True))
                    keys = [key for key in keys if code(responses[key]) in BUSY]  # noqa: PLW2901 - what remains
                    if not keys:
                        break
                else:
                    # An item was busy at every try: without this each further call would wait for its own tries.
                    tries_max = 1
        # Some calls have taken effect: their responses must not be lost because a later call failed.
        except EngineUnavailable:
            if not responses:
                raise
        return responses

    def _answer(self, operation: Callable[..., Any], arguments: Statement) -> Answered:
        try:
            answer: Answered = self._ask(operation, **arguments)
            return answer
        except ClientError as error:
            return self._refusal(error)

    def _refusal(self, error: ClientError) -> Answered:
        """The refusal of a call with one write, as the response to its statement."""
        (reason,) = self._refused(error, 1).reasons
        assert reason is not None
        return {"Error": {"Code": reason.code, "Message": reason.message}}

    def _responses(self, statements: list[Statement]) -> list[Answered]:
        """Sends statements in one call; if that is refused, one by one, so that only the guilty one fails."""
        try:
            responses: list[Answered] = self._ask(self.client.batch_execute_statement, Statements=statements)[
                "Responses"
            ]
            return responses
        except ClientError as error:
            refusal = self._refusal(error)
        if code(refusal) in BUSY or len(statements) == 1:
            return [refusal] * len(statements)
        return [answer for statement in statements for answer in self._responses([statement])]

    def _forbidden(self, answer: Answered) -> EngineError:
        if code(answer) == "ResourceNotFound":
            return self._missing()
        why = code(answer) or ""
        return EngineError(
            f"DynamoDB refused the call with {why}: {marked_message(why, answer['Error'].get('Message', ''))}"
        )
