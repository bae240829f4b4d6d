"""``streamfold doctor`` looks whether code, functions, tables and state fit together, and writes nothing."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from streamfold.cli import shell
from streamfold.cli.output import Report
from streamfold.cli.session import Session
from streamfold.deploy.deployed import Account, LiveFunction, functions_of_stack
from streamfold.deploy.diagnosis import BAD, GOOD, UNSEEN, DoctorLine, bad, byte_code, good, judged, settings_fit
from streamfold.deploy.doctor import Doctor
from streamfold.deploy.functions import RUNTIME
from streamfold.deploy.rules import WRONG
from streamfold.errors import StreamfoldError
from streamfold.settings import Settings

TEMPLATE = Path("template.yaml")


@shell.command(
    "doctor",
    "Look whether code, functions, tables and state fit together.",
    shell.APPLICATION,
    shell.value("--stack", "NAME", "The CloudFormation stack whose functions are looked at.", callback=shell.utf8),
    shell.value(
        "--function", "NAME", "The name of a function of Lambda.", "functions", multiple=True, callback=shell.utf8
    ),
    shell.exclusive("--stack", "--function"),
    shell.file(
        "--template", "The template of the functions, of SAM or CloudFormation.  [default: template.yaml]", "template"
    ),
    shell.value("--build", "FOLDER", "A built function, whose byte code is looked at: .aws-sam/build/Projector."),
    shell.runtime(RUNTIME),
    shell.json_flag("Print one JSON object a line."),
)
def doctor(opened: Session) -> Report:
    """Print a line for each thing that can be wrong: good, bad, or not allowed to look, and what to do.

    Without --stack and --function, AWS is not asked: the application, its template with the settings of each function
    (of this environment, where there is no template), and with --build the byte code. With them (--function may be
    repeated) also the functions, their event source mappings and permissions, the tables and the state. Nothing is
    written, and nothing of an item is printed. The exit code is 1 if a line is bad.

    \b
    Examples:
      streamfold doctor
      streamfold doctor --stack shop-prod --json
    """
    found = list(_lines(opened))
    counts = {state: sum(line.state == state for line in found) for state in (GOOD, BAD, UNSEEN)}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return Report([*map(str, found), f"{summary}."], [line._asdict() for line in found], bool(counts[BAD]))


def _lines(opened: Session) -> Iterator[DoctorLine]:
    given = opened.given
    if given.build is not None:
        yield from judged(given.build, {"byte code": lambda: byte_code(Path(given.build), given.runtime)})
    try:
        app = opened.app
    except StreamfoldError as error:
        found = bad(str(error), "correct the code or --app; nothing else can be looked at without it")
        yield DoctorLine("application", given.application, *found)
        return
    yield DoctorLine("application", app.name, *good(f"{len(app.routes)} handlers"))
    if given.stack is None and not given.functions:
        if given.template is not None or TEMPLATE.exists():
            yield from _template(opened, given.template or TEMPLATE)
            return
        yield from judged(
            "this environment", {"settings": lambda: settings_fit(app, Settings.from_environment(os.environ))}
        )
        return
    account = Account()
    functions = (
        [LiveFunction(account, name) for name in given.functions]
        if given.stack is None
        else functions_of_stack(account, given.stack)
    )
    yield from Doctor(app, account, functions, time.time()).lines()


def _template(opened: Session, path: Path) -> Iterator[DoctorLine]:
    """Each thing that is wrong in a template; advice is what ``streamfold template --check`` gives, too."""
    from streamfold.deploy.check import check_template  # a third of the command's start
    from streamfold.deploy.template_file import read_template

    module = str(opened.given.application.partition(":")[0])
    try:
        found = check_template(opened.app, module, read_template(path), runtime=opened.given.runtime)
    except StreamfoldError as error:
        yield DoctorLine("template", path.name, *bad(str(error), "correct it; the template was not looked at"))
        return
    wrong = [each for each in found if each.level == WRONG]
    for each in wrong:
        subject = f"{path.name}, {each.resource}".rstrip(", ")
        yield DoctorLine(
            "template", subject, *bad(f"{each.path}: {each.text}".removeprefix(": "), "correct the template")
        )
    if not wrong:
        yield DoctorLine("template", path.name, *good("it gives the application what the routes ask for"))
