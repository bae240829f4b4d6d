"""The DynamoDB engine: plans carried out through boto3, on AWS or on DynamoDB Local."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.engines import Counter, Finished, Inserted
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.dynamodb_calls import plain_item, said
from streamfold.engines.dynamodb_client import unreachable
from streamfold.engines.dynamodb_reads import Reads, cut
from streamfold.engines.expressions import ActionRequest, state_attributes
from streamfold.engines.statements import (
    BUSY,
    DUPLICATE,
    OTHERWISE,
    UNSTORABLE,
    Answered,
    Statement,
    code,
    counting,
    forgetting,
    insertion,
    message,
    names_keys,
    pair_insertion,
    pair_update,
    removal,
)
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, told
from streamfold.records.values import encode
from streamfold.settings.limits import STATEMENTS_MAX
from streamfold.writes.guarded import (
    CONDITION,
    VALIDATION,
    AbsentSource,
    GuardedWrite,
    PutPair,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
)

AnyKey = TypeVar("AnyKey", RowKey, StateKey)
OPERATIONS = {"Update": "update_item", "Put": "put_item", "Delete": "delete_item"}


class SingleCalls(Reads):
    """Calls for rows that no PartiQL statement can name, one each."""

    def _takes_statements(self, key: RowKey) -> bool:
        return names_keys(self.requests.tables[key[0]][0])

    def _unstorable(self, write: GuardedWrite, expires_at: int) -> Reason | None:
        try:
            self.requests.action(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        return None

    def _each(self, operation: str, requests: Mapping[RowKey, Statement]) -> dict[RowKey, Answered]:
        """The last answer to each request, as ``_execute`` gives those of statements: a call for each."""
        answers: dict[RowKey, Answered] = {}
        tries_max = TRIES_MAX
        try:
            for key, arguments in requests.items():
                for _ in self.deadline.tries(tries_max):
                    answers[key] = self._answer(getattr(self._client(key), operation), arguments)
                    if code(answers[key]) not in BUSY:
                        break
                else:
                    tries_max = 1
        except EngineUnavailable:
            if not answers:
                raise
        return answers

    def _answer(self, operation: Callable[..., Any], arguments: Statement) -> Answered:
        try:
            answer: Answered = self._ask(operation, **arguments)
            return answer
        except ClientError as error:
            (reason,) = self._refused(error, 1).reasons
        assert reason is not None
        return {"Error": {"Code": reason.code, "Message": reason.message}}


class DynamoEngine(SingleCalls):
    """DynamoDB behind the engine protocol.

    After ``deadline`` no call is begun but the notes of ``swap_state``, which say what was done already.
    """

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        try:
            actions = [self.requests.action(write, expires_at) for write in writes]
        except HandlerError:
            return Refused(tuple(self._unstorable(write, expires_at) for write in writes))
        # One write alone costs half of what it costs in a transaction; a check has no call of its own.
        if len(actions) == 1 and not isinstance(writes[0], AbsentSource):
            ((kind, arguments),) = actions[0].items()
            return self._sent(1, getattr(self._client(writes[0].key), OPERATIONS[kind]), arguments)
        return self.send(actions)

    def send(self, actions: Sequence[ActionRequest]) -> Refused | None:
        """Carries out actions in one transaction."""
        return self._sent(len(actions), self.client.transact_write_items, {"TransactItems": actions})

    def _sent(self, actions: int, operation: Callable[..., Any], arguments: Mapping[str, Any]) -> Refused | None:
        try:
            self._ask(operation, **arguments)
            return None
        except ClientError as error:
            return self._refused(error, actions)

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        statements: dict[RowKey, Statement] = {}
        puts: dict[RowKey, Statement] = {}
        refused: dict[RowKey, str] = {}
        for row in rows:
            try:
                if self._takes_statements(row.key):
                    statements.setdefault(row.key, insertion(self.requests, row))
                else:
                    puts.setdefault(row.key, self.requests.insertion(row))
            except HandlerError as error:
                refused[row.key] = str(error)
        answers = self._execute(statements)
        answers |= {key: _inserted(answer) for key, answer in self._each("put_item", puts).items()}
        missing = [key for key in (*statements, *puts) if key not in answers or not self._is_there(answers[key])]
        refused |= {key: message(answers[key]) for key in missing if code(answers.get(key, {})) in UNSTORABLE}
        never = [key for key in refused if key not in missing]
        return Inserted(never + missing, [key for key, answer in answers.items() if code(answer) == DUPLICATE], refused)

    def put_pairs(self, pairs: Sequence[PutPair]) -> list[RowKey]:
        left = {pair.key: pair for pair in pairs}
        for otherwise in (False, True):
            statements: dict[RowKey, Statement] = {}
            for pair in left.values():
                inserts = pair.fresh is not otherwise
                if not (inserts and pair.replaces) and self._takes_statements(pair.key):
                    with suppress(HandlerError):  # said when it is written alone
                        statements[pair.key] = (pair_insertion if inserts else pair_update)(self.requests, pair)
            for key, answer in self._execute(statements).items():
                if self._is_put(answer, left[key]):
                    del left[key]
        return list(left)

    def _is_put(self, answer: Answered, pair: PutPair) -> bool:
        """Whether a row is as it is to be, without attributes from before."""
        if code(answer) in (DUPLICATE, CONDITION, *BUSY, *UNSTORABLE):
            return False
        if code(answer) is not None:
            raise self._forbidden(answer)
        own = {*self.requests.pair(pair), *self.requests.key(pair.key)}
        return own.issuperset(answer.get("Item", ()))

    def _is_there(self, answer: Answered) -> bool:
        """Whether a row is there, by this insertion or an earlier one. Raises if no row can be inserted at all."""
        why = code(answer)
        if why in (*BUSY, *UNSTORABLE):
            return False
        if why not in (None, DUPLICATE):
            raise self._forbidden(answer)
        return True

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """A row that is not there makes no error, and is not returned (Developer Guide, ql-reference.delete)."""
        statements = {key: removal(self.requests, key) for key in rows if self._takes_statements(key)}
        answers = self._execute(statements)
        answers |= self._each("delete_item", {key: self.requests.removal(key) for key in rows if key not in statements})
        for answer in answers.values():
            if code(answer) not in (None, CONDITION, *BUSY):
                raise self._forbidden(answer)
        if left := [key for key in dict.fromkeys(rows) if key not in answers or code(answers[key]) in BUSY]:
            raise EngineUnavailable(f"{len(left)} of {len(set(rows))} empty rows could not be removed: they are busy.")
        return [key for key, answer in answers.items() if "Item" in answer or "Attributes" in answer]

    def _execute(self, statements: Mapping[AnyKey, Statement]) -> dict[AnyKey, Answered]:
        """The last answer to each statement; none to statements that were not sent, or not for certain.

        What is busy is tried again. Once something stays busy, the rest is tried once, so that pauses do not add up.
        """
        answers: dict[AnyKey, Answered] = {}
        tries_max = TRIES_MAX
        try:
            for keys in cut(statements, STATEMENTS_MAX):
                for _ in self.deadline.tries(tries_max):
                    answers.update(zip(keys, self._answers([statements[key] for key in keys]), strict=True))
                    keys = [key for key in keys if code(answers[key]) in BUSY]  # noqa: PLW2901 - what is left
                    if not keys:
                        break
                else:
                    tries_max = 1
        except EngineUnavailable:
            if not answers:
                raise
        return answers

    def _answers(self, statements: list[Statement]) -> list[Answered]:
        """Sends statements in one call; if that is refused, one by one, so that only the guilty one fails."""
        try:
            answers: list[Answered] = self._ask(self.client.batch_execute_statement, Statements=statements)["Responses"]
            return answers
        except ClientError as error:
            (reason,) = self._refused(error, 1).reasons
        assert reason is not None
        if reason.code in BUSY or len(statements) == 1:
            return [{"Error": {"Code": reason.code, "Message": reason.message}}] * len(statements)
        return [answer for statement in statements for answer in self._answers([statement])]

    def _forbidden(self, answer: Answered) -> EngineError:
        if code(answer) == "ResourceNotFound":
            return self._missing()
        why = code(answer) or ""
        return EngineError(f"DynamoDB refused the call with {why}: {said(why, answer['Error'].get('Message', ''))}")

    def forget(self, finished: Finished) -> None:
        for some in cut(finished.items(), STATEMENTS_MAX):
            statements = [forgetting(self.requests, key, texts) for key, texts in some]
            for answer in self._call(self.client.batch_execute_statement, Statements=statements)["Responses"]:
                if code(answer) not in (None, CONDITION, *BUSY):
                    raise self._forbidden(answer)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        wanted = {counter.key: counter for counter in counters}
        answers = self._execute({key: counting(self.requests, wanted[key], start, expires_at) for key in wanted})
        first = {"n": start + 1, "ttl": expires_at}
        found = ((key, self._counted(wanted[key], answer, first)) for key, answer in answers.items())
        counted = {key: item for key, item in found if item is not None}
        left = [wanted[key] for key, answer in answers.items() if key not in counted and code(answer) not in BUSY]
        try:
            for counter in left:
                if (item := self._count_one(counter, start, expires_at)) is not None:
                    counted[counter.key] = item
        except EngineUnavailable:
            if not counted:
                raise
        return counted

    def _counted(self, counter: Counter, answer: Answered, first: Mapping[str, Any]) -> dict[str, Any] | None:
        """The item after a statement; None if it was refused, or does not tell. ``first``: what is inserted."""
        if code(answer) in (*OTHERWISE, *BUSY):
            return None
        if code(answer) is not None:
            raise self._forbidden(answer)
        if counter.new:
            return dict(first)
        return _counter(answer["Item"]) if "Item" in answer else None

    def _count_one(self, counter: Counter, start: int, expires_at: int) -> dict[str, Any] | None:
        """Raises a counter that is there although it was to be new, or is not there; None if it stayed busy.

        It is tried as it was found, and then the other way round: an item may be made or expire at any moment.
        """
        for there in (counter.new, not counter.new):
            try:
                update = self.requests.counting(counter, start, expires_at, there=there)
                return _counter(self._ask(self.client.update_item, **update)["Attributes"])
            except ClientError as error:
                (reason,) = self._refused(error, 1).reasons
            assert reason is not None
            if reason.code in BUSY:
                return None
            if reason.code != CONDITION:
                raise self._forbidden({"Error": {"Code": reason.code, "Message": reason.message}})
        return None

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        item = state_attributes(key) | encode({**attributes, "r": revision + 1})["M"]
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
        if revision:
            condition = {"ConditionExpression": "r = :seen", "ExpressionAttributeValues": {":seen": encode(revision)}}
        try:
            self._made(self.client.put_item, {"TableName": self.requests.state_table, "Item": item, **condition})
            return True
        except ClientError as error:
            refused = self._refused(error, 1)
            if refused.reasons[0] and refused.reasons[0].code == CONDITION:
                return False
            raise EngineUnavailable(f"State item {told(key)} could not be written: {told(error)}") from error
        except BotoCoreError as error:
            raise unreachable(error) from error


def _counter(item: Mapping[str, Any]) -> dict[str, Any]:
    """A state item as ``read_state`` gives it."""
    return {name: value for name, value in plain_item(item).items() if name not in ("pk", "sk")}


def _inserted(answer: Answered) -> Answered:
    """The answer to an insertion by PutItem, with the code that a statement's has where a row is there."""
    return {"Error": {"Code": DUPLICATE}} if code(answer) == CONDITION else answer
