"""One version of an application, in a process and a folder of its own: it is told items, and tells rows.

Each line that it reads is a JSON list of ``[table, item]``; it answers with a line of JSON for each item, and begins
with one that says what it has loaded. What handlers print goes to standard error.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from streamfold.app import App
from streamfold.cli.application import load_application
from streamfold.errors import StreamfoldError, plain
from streamfold.ledger.forms import Forms
from streamfold.lifecycle.diff import side_rows

MODULE = "streamfold.cli.old_side"


def serve(application: str, folder: str, lines: TextIO, answers: TextIO) -> None:
    """Loads the application from a folder, and answers until there are no more lines."""
    try:
        app = load_application(application)
        _check_place(application, Path(folder))
    except StreamfoldError as error:
        _answer(answers, {"error": plain(str(error))})
        return
    _answer(answers, _loaded(app, Path(folder)))
    forms = Forms()
    for line in lines:
        answers.writelines(side_rows(app, forms, table, image).line() + "\n" for table, image in json.loads(line))
        answers.flush()


def _loaded(app: App, folder: Path) -> dict[str, Any]:
    """What was loaded: the handlers, and those of them whose functions lie elsewhere."""
    functions = {route.name: route.function for route in app.routes if route.kind.contributes}
    files = {name: getattr(getattr(each, "__code__", None), "co_filename", "") for name, each in functions.items()}
    elsewhere = [name for name, file in files.items() if file and not Path(file).resolve().is_relative_to(folder)]
    return {"application": app.name, "handlers": list(functions), "elsewhere": elsewhere}


def _check_place(application: str, folder: Path) -> None:
    module = sys.modules[application.partition(":")[0]]
    place = Path(module.__file__ or "").resolve()
    if not place.is_relative_to(folder.resolve()):
        raise StreamfoldError(
            f"Module {module.__name__!r} was found in {place.parent}, and not in the old code. Is it installed as a "
            "package? Then stand in the folder that holds it."
        )


def _answer(answers: TextIO, found: dict[str, Any]) -> None:
    answers.write(json.dumps(found) + "\n")
    answers.flush()


def main() -> None:
    """Answers on the standard output that it was given."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        serve(sys.argv[1], sys.argv[2], sys.stdin, answers)


if __name__ == "__main__":
    main()
