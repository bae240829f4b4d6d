"""Bodies of DynamoDB requests, encoded once: boto3 resolves, signs, sends, tries again, and reads what comes back.

botocore validates and serialises the parameters of a call value by value, which costs ten times as much as the JSON
that comes of it. What an engine sends is made by ``expressions`` and ``statements`` alone, in one closed form. So the
engine writes the JSON itself, and botocore is given the shortest parameters that it takes. Two of its public events
(boto3 guide, "Extensibility") put the JSON in place: ``provide-client-params`` keeps it in the context of the call, and
``before-call`` exchanges the body before it is signed. What botocore or other handlers add, such as the request's token
or the wish to be told the units, stays.

The first call of each operation goes the ordinary way, with all of its parameters, and its body is compared with the
JSON. If they do not say the same, or an event does not come, every call goes the ordinary way.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streamfold.engines.answers import called, watch
from streamfold.records.encoded import body_json

Operation = Callable[..., Any]

CARRIERS: Mapping[str, tuple[str, str, Any]] = {
    "transact_write_items": ("TransactWriteItems", "TransactItems", [{}]),
    "batch_execute_statement": ("BatchExecuteStatement", "Statements", [{"Statement": "-"}]),
    "batch_get_item": ("BatchGetItem", "RequestItems", {"-": {"Keys": [{}]}}),
    "put_item": ("PutItem", "Item", {}),
    "update_item": ("UpdateItem", "Key", {}),
    "delete_item": ("DeleteItem", "Key", {}),
}
"""By method: the operation, the parameter that carries the JSON through botocore, and the shortest value of it."""
ENDPOINT = "TableName"
"""The parameter that botocore may choose an endpoint by."""
ARN = "arn:"
KEPT_AS = "streamfold_body"
"""Where the context of a call keeps the JSON."""
ID = "streamfold-bodies"


class Body:
    """The JSON of a call, on its way through botocore."""

    def __init__(self, text: bytes, given: Mapping[str, Any], *, sent: bool) -> None:
        self.text = text
        self.given = given  # parameters that botocore was given, and that the JSON has too
        self.sent = sent  # the JSON is sent; otherwise the ordinary body is, and compared with the JSON
        self.equal: bool | None = None  # None: they were not compared

    def meet(self, request: dict[str, Any]) -> None:
        """Compares a request's body with the JSON, or exchanges it."""
        if not self.sent:
            self.equal = self._says_the_same(request["body"])
            return
        added = {name: value for name, value in json.loads(request["body"]).items() if name not in self.given}
        more = "," + json.dumps(added)[1:] if added else "}"
        request["body"] = self.text[:-1] + more.encode("ascii")

    def _says_the_same(self, body: bytes | str) -> bool:
        try:
            ordinary = json.loads(body)
            return bool(json.loads(self.text) == {name: ordinary[name] for name in self.given})
        except (ValueError, TypeError, KeyError):  # no JSON, or another form of it
            return False


class _List(list[Any]):
    body: Body


class _Map(dict[str, Any]):
    body: Body


class Bodies:
    """Makes the calls of one client.

    tables: the real names of tables. Where one is an ARN, botocore may choose the endpoint by it, so all calls go the
    ordinary way.
    """

    def __init__(self, client: Any, tables: Iterable[str] = ()) -> None:
        self._equal: dict[str, bool] = {}  # by method: whether both bodies said the same
        events = getattr(getattr(client, "meta", None), "events", None)
        self._ready = events is not None and not any(table.startswith(ARN) for table in tables)
        if events is not None:
            watch(events)
        if events is not None and self._ready:
            for operation, _, _ in CARRIERS.values():
                events.register(f"provide-client-params.dynamodb.{operation}", _keep, f"{ID}-{operation}")
                events.register(f"before-call.dynamodb.{operation}", _exchange, f"{ID}-call-{operation}")

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """Makes a call. What it raises and returns is the operation's."""
        name = getattr(operation, "__name__", "")
        equal = self._equal.get(name)
        if not self._ready or name not in CARRIERS or equal is False:
            return called(operation, arguments)
        _, carrier, shortest = CARRIERS[name]
        given = arguments
        if equal:
            given = {carrier: shortest}
            if ENDPOINT in arguments:
                given[ENDPOINT] = arguments[ENDPOINT]
        body = Body(body_json(arguments), given, sent=bool(equal))
        carried = (_List if isinstance(shortest, list) else _Map)(given[carrier])
        carried.body = body
        answered = False
        try:
            answer = called(operation, {**given, carrier: carried})
            answered = True
        finally:
            if not body.sent and (answered or body.equal is not None):
                self._equal[name] = bool(body.equal)
        return answer


def _keep(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    for name, value in params.items():
        if isinstance(value, _List | _Map):
            context[KEPT_AS] = value.body
            params[name] = [*value] if isinstance(value, _List) else {**value}  # jmespath takes no class of its own
            return


def _exchange(params: dict[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    if (body := context.get(KEPT_AS)) is not None:
        body.meet(params)
