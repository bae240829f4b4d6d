"""``streamfold template`` prints what an application needs on AWS, or checks a template for it, without AWS."""

import json
import sys
from collections.abc import Mapping, Sequence

import click

from streamfold.cli import shell
from streamfold.cli.output import Note, Report, counted
from streamfold.cli.session import Session
from streamfold.deploy.accounts import Grants
from streamfold.deploy.check import check_template
from streamfold.deploy.check.mappings import tables_of
from streamfold.deploy.check.review import Review
from streamfold.deploy.filters import Filter, united
from streamfold.deploy.functions import RUNTIME, STREAM, Deployment, ExistingTable, existing_table
from streamfold.deploy.rules import WRONG
from streamfold.deploy.sam import SamTemplate, notes, parts, plain
from streamfold.deploy.table_names import OtherAccounts, own_account, shared_bucket, shared_queue
from streamfold.deploy.template_file import TemplateFile, file_text, read_template
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN
from streamfold.pages.page import check_file, page, write_page
from streamfold.replay.costs import beginning
from streamfold.replay.files import RecordedFiles
from streamfold.settings import Settings
from streamfold.settings.readers import read_role, read_role_of_table

SAM, PARTS = "sam", "parts"
OPERATE, READ = "operate", "read"
ELSEWHERE = ("--account", "--assume", "--bucket", "--queue", "--grants")
"""Options about other accounts."""
BUILDS = ".aws-sam/build"
"""The folder beside a template where ``sam build`` puts functions, by name."""
PRINTING = ("--format", "--table", "--stream", "--key", "--before", "--role", *ELSEWHERE)
PREVIEW = "--dashboard-preview"


@shell.command(
    "template",
    "Print what the application needs on AWS, or check a template for it.",
    shell.APPLICATION,
    shell.choice("--format", (SAM, PARTS), "A whole template, or its parts as JSON.", default=SAM),
    shell.value(
        "--table",
        "NAME=REAL",
        "A table that is there already, with its real name; REAL alone names the table main. May be repeated.",
        "tables",
        multiple=True,
    ),
    shell.value("--stream", "[NAME=]ARN", "The stream of such a table.", "streams", multiple=True),
    shell.value("--key", "[NAME=]ARN", "The KMS key of such a table, if it has its own.", "keys", multiple=True),
    shell.file(
        "--before",
        "The deployed template: filters pass what its filters pass, too. Deploy them before a new handler.",
        "before",
    ),
    shell.file(
        "--check",
        "Name each difference between this template of SAM or CloudFormation and the routes.",
        "check",
    ),
    shell.value(
        "--role",
        f"{OPERATE}|{READ}",
        "Print the policy of people who operate the application, or of those who read only.",
        type=click.Choice([OPERATE, READ]),
    ),
    shell.value("--account", "NUMBER", "The account of the functions, where a stream is in another one.", "account"),
    shell.value(
        "--assume",
        "[NAME=]ARN",
        "The role of another account by which functions use a table; without NAME: the state and all tables. May be "
        "repeated; NAME=own leaves a table in the functions' account.",
        "assumed",
        multiple=True,
    ),
    shell.value(
        "--bucket",
        "KIND=NAME/ACCOUNT",
        "A bucket of another account, for failures or archive. May be repeated.",
        "buckets",
        multiple=True,
    ),
    shell.value("--queue", "ARN", "A queue of another account for segments of fan-outs.", "queue"),
    shell.value("--grants", "STACK", "Print what other accounts grant the functions of this stack, as JSON.", "grants"),
    shell.file(
        PREVIEW,
        "Write the dashboard to this file, with the figures of these records: one self-contained page.",
        "preview",
        "FILE.html",
    ),
    click.argument("files", nargs=-1, metavar="[EVENTS...]"),
    shell.runtime(RUNTIME),
    *(
        shell.refuses("--check", other, why="--check reads a template, and {other} is of one that is printed.")
        for other in PRINTING
    ),
    *(
        shell.refuses(PREVIEW, other, why=f"{PREVIEW} draws the dashboard, and {{other}} is of a template.")
        for other in ("--check", "--before", "--role", "--format")
    ),
    shell.belongs("FILES", PREVIEW, why=f"EVENTS are replayed for {PREVIEW} alone: name its page too."),
    shell.belongs(PREVIEW, "FILES", why=f"{PREVIEW} needs records: name files of them, as replay takes them."),
    shell.belongs("--stream", "--table"),
    shell.belongs("--key", "--table"),
    shell.json_flag("Print JSON: of a template, and of differences one object a line."),
)
def template(opened: Session) -> Report:
    """Print a template of SAM, or check one. YAML needs the extra streamfold[deploy]; without it, JSON is printed.

    With --check, a difference is wrong where the deployed application would lose, repeat or hide something, or not
    run: the exit code is then 1. It is advice where a person may have a reason. Batches, windows, memory, retention,
    keys, tags and further alarms are yours.

    \b
    Examples:
      streamfold template > template.yaml
      streamfold template --check template.yaml
      streamfold template --dashboard-preview dashboard.html events/shop.jsonl
    """
    if opened.given.preview is not None:
        return _previewed(opened)
    return _checked(opened) if opened.given.check is not None else _printed(opened)


def _checked(opened: Session) -> Report:
    given = opened.given
    builds = given.check.parent / BUILDS
    read = read_template(given.check)
    found = check_template(opened.app, _module(opened), read, runtime=given.runtime, builds=builds)
    wrong = [each for each in found if each.level == WRONG]
    what = counted(len(wrong), "difference") if wrong else "no difference"
    summary = f"{given.check.name}: {what} that is wrong, {len(found) - len(wrong)} of advice."
    return Report([*map(str, found), summary], [each._asdict() for each in found], bool(wrong))


def _printed(opened: Session) -> Report:
    given, app, module = opened.given, opened.app, _module(opened)
    deployment = Deployment(app, sys.modules[module])
    existing = _existing(opened, deployment)
    elsewhere = _elsewhere(opened)
    made = SamTemplate(deployment, existing=existing, runtime=given.runtime, elsewhere=elsewhere)
    if given.grants is not None:
        text = json.dumps(Grants(made.tables, given.grants).documents(), indent=2)
        return Report([text], text)
    if given.before is not None:
        filters = filters_after(read_template(given.before), made, module)
        made = SamTemplate(deployment, existing=existing, filters=filters, runtime=given.runtime, elsewhere=elsewhere)
    if given.role is not None:
        document = made.role(given.role)
        is_plain = given.format == PARTS
        text = json.dumps(plain(TemplateFile(made.content), document) if is_plain else document, indent=2)
        return Report([text], text)
    if given.format == SAM and not given.json_output:
        text = file_text(made.content).rstrip("\n")
    else:
        text = json.dumps(parts(made) if given.format == PARTS else made.content, indent=2, ensure_ascii=False)
    return Report([text, *map(Note, notes(made))], text)


def _previewed(opened: Session) -> Report:
    from streamfold.pages.dashboard import previewed

    file, app = opened.given.preview, opened.app
    check_file(file, PREVIEW)
    deployment = Deployment(app, sys.modules[_module(opened)])
    made = SamTemplate(deployment, existing=_existing(opened, deployment), elsewhere=_elsewhere(opened))
    data = previewed(made, opened.settings, beginning(RecordedFiles(opened.given.files)))
    write_page(file, page(f"Dashboard of {app.name}", data), PREVIEW)
    return Report([f"The dashboard is in {file}: open it in a browser."], {"file": str(file)})


def _module(opened: Session) -> str:
    return str(opened.given.application.partition(":")[0])


def _existing(opened: Session, deployment: Deployment) -> dict[str, ExistingTable]:
    """The existing tables of the options. Raises ``SettingsError`` for names and ARNs that do not fit."""
    given = opened.given
    tables = _by_table(opened, "--table", given.tables)
    streams, keys = _by_table(opened, "--stream", given.streams), _by_table(opened, "--key", given.keys)
    for option, values in (("--stream", streams), ("--key", keys)):
        for name in values.keys() - tables.keys():
            raise SettingsError(
                f"{option} is of table {name!r}, which --table does not name: expected --table {name}=REAL."
            )
    sources = {table.name for table in deployment.sources}
    return {
        name: existing_table(name, real, streams.get(name), keys.get(name), is_source=name in sources)
        for name, real in tables.items()
    }


def _elsewhere(opened: Session) -> OtherAccounts:
    """What the options name in other accounts. Raises ``SettingsError``."""
    given = opened.given
    of_all = [each for each in given.assumed if "=" not in each]
    named = _by_table(opened, "--assume", [each for each in given.assumed if "=" in each])
    if len(of_all) > 1:
        raise SettingsError(f"--assume {of_all[1]!r}: expected one role for the state and all tables.")
    settings = Settings(
        role=read_role("--assume", of_all[0]) if of_all else None,
        roles={name: read_role_of_table(f"--assume {name}", text) for name, text in named.items()},
    )
    buckets = dict(shared_bucket("--bucket", each) for each in given.buckets)
    account = None if given.account is None else own_account(given.account)
    return OtherAccounts(account, settings, buckets, None if given.queue is None else shared_queue(given.queue))


def _by_table(opened: Session, option: str, values: Sequence[str]) -> dict[str, str]:
    """Values of ``NAME=VALUE`` by logical table; ``VALUE`` alone is of the table main."""
    found: dict[str, str] = {}
    for pair in values:
        name, equals, value = pair.partition("=")
        logical, real = (name, value) if equals else (MAIN.name, pair)
        if logical not in opened.app.tables:
            known = ", ".join(opened.app.tables)
            raise SettingsError(f"{option} {pair!r}: the application has no table {logical!r}, only {known}.")
        if not real or logical in found:
            raise SettingsError(
                f"{option} {pair!r}: expected one value for table {logical!r}, {option} {logical}=VALUE."
            )
        found[logical] = real
    return found


def filters_after(before: TemplateFile, template: SamTemplate, module: str) -> dict[tuple[str, str], Filter]:
    """The filters that pass what those of a deployed template pass, and what the application wants now."""
    review = Review(before, template.deployment, module, template.runtime)
    deployed: dict[tuple[str | None, str], list[str]] = {}
    for found in review.of(STREAM):
        for mapping in found.mappings:
            for table in tables_of(review, found, mapping):
                (criteria,) = review.values(mapping.properties, "FilterCriteria")[:1]
                filters = criteria.get("Filters", ()) if isinstance(criteria, Mapping) else ()
                deployed[found.function.group, table] = [str(each["Pattern"]) for each in filters]
    return {
        (each.name, table): united(deployed[each.group, table], template.filter(each, table))
        for each in template.functions
        for table in each.subscribed
        if (each.group, table) in deployed
    }
