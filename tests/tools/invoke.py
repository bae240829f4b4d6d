"""Calls a built function as Lambda would, in an interpreter that finds nothing but the function and its runtime.

  python -I -S -B invoke.py TASK_FOLDER RUNTIME_FOLDER MODULE.HANDLER

One process is one execution environment. It takes an event a line on standard input, as JSON, and answers a line each:
what the handler returned, or ``{"errorType": ..., "errorMessage": ...}``. What the function prints goes to standard
error, as it would go to the log. Standard library only.
"""

import importlib
import json
import os
import sys

SECONDS = 60


class Context:
    """What Lambda hands to a handler beside the event."""

    function_name = "projector"
    function_version = "$LATEST"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:projector"
    memory_limit_in_mb = 512

    def __init__(self, number):
        self.aws_request_id = f"request-{number}"

    def get_remaining_time_in_millis(self):
        return SECONDS * 1000


def main(task_folder, runtime_folder, place):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [task_folder, runtime_folder]
    module, _, name = place.rpartition(".")
    handler = getattr(importlib.import_module(module), name)
    for number, line in enumerate(sys.stdin):
        try:
            answer = handler(json.loads(line), Context(number))
        except Exception as error:  # noqa: BLE001 - Lambda reports whatever a handler raises
            answer = {"errorType": type(error).__name__, "errorMessage": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
