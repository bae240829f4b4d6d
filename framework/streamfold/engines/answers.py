"""Answers of DynamoDB's reads, parsed once: botocore walks an item value by value, which costs ten times the JSON.

The JSON of an answer has the form that a caller of botocore gets, but for binary values, which botocore decodes. So the
event ``before-parse`` hands botocore what that JSON says, and an empty body in its place. Answers that hold binary
values, errors, and the calls of others are left to botocore. So are all where the event does not come.
"""

import re
from collections.abc import Callable
from threading import local
from typing import Any

from streamfold.records.encoded import parsed_answer

READS = ("BatchGetItem", "GetItem", "Query", "Scan")
BINARY = re.compile(rb'"BS?"')
"""What an answer with binary values holds; one whose names or texts hold it goes botocore's way, too. An expression is
a third of the time of looking for each of them with ``in``.
"""
OK = 200
ID = "streamfold-answers"

_CALLING = local()  # ``ours``: this thread makes a call of an engine


def watch(events: Any) -> None:
    """Parses the answers of a client's reads where an engine makes them. ``events`` are the client's."""
    for operation in READS:
        events.register(f"before-parse.dynamodb.{operation}", _parse, f"{ID}-{operation}")


def called(operation: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Makes a call of an engine."""
    _CALLING.ours = True
    try:
        return operation(**arguments)
    finally:
        _CALLING.ours = False


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    body = response_dict["body"]
    if not getattr(_CALLING, "ours", False) or response_dict["status_code"] != OK or BINARY.search(body):
        return
    try:
        answer = parsed_answer(body)
    except ValueError:  # botocore says what is wrong
        return
    customized_response_dict.update({name: value for name, value in answer.items() if value is not None})
    response_dict["body"] = b"{}"
