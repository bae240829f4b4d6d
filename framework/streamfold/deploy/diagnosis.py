"""What the doctor says of one thing: a diagnosis of settings, of a build, of a function's mapping.

A line is *good*, *bad*, or *not allowed to look*. It holds names of handlers, templates, functions and tables, and
counts; never keys or other contents of items.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.batch.manifest import Manifest
from streamfold.batch.process import check_settings, undeclared_names
from streamfold.deploy.choices import choice_of
from streamfold.deploy.deployed import LiveFunction, LiveMapping, NotAllowed, NotThere
from streamfold.deploy.functions import STREAM
from streamfold.deploy.rules import (
    AGE,
    DESTINATION,
    HALVES,
    PARTIAL_RESPONSE,
    RESPONSES,
    RETRIES,
    STARTS,
    TIMEOUT_SECONDS,
    DeploymentRule,
    mapping_rules,
    pythons_of,
    timeout_rule,
    timeout_seconds_min,
)
from streamfold.deploy.template_file import ABSENT
from streamfold.derivations.derivation import derivation
from streamfold.errors import SettingsError, manual
from streamfold.keys.table import MAIN
from streamfold.lambda_entry.accounts import uses_table
from streamfold.lambda_entry.function import check_parking
from streamfold.settings import ROLE_PREFIX, Settings, environment_name
from streamfold.settings.readers import account_of, account_of_role
from streamfold.testing.mapping_settings import FOREVER

GOOD, BAD, UNSEEN = "good", "bad", "not allowed to look"
BY_SCHEDULE = "verify_handler"
"""Ends the handler of a function that a schedule calls."""


class Diagnosis(NamedTuple):
    """What was found, and what to do where it is bad."""

    state: str
    found: str
    remedy: str = ""


class DoctorLine(NamedTuple):
    """A finding about one thing."""

    check: str
    subject: str
    state: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.state}: {self.subject}, {self.check}: {self.found}{f' -> {self.remedy}' * bool(self.remedy)}"


Diagnose = Callable[[], Diagnosis]


def good(found: str) -> Diagnosis:
    return Diagnosis(GOOD, found)


def bad(found: str, remedy: str) -> Diagnosis:
    return Diagnosis(BAD, found, remedy)


def judged(subject: str, checks: Mapping[str, Diagnose]) -> Iterator[DoctorLine]:
    """The lines of some checks. A refused permission is never *good*, and what does not exist is *bad*."""
    for name, check in checks.items():
        try:
            finding = check()
        except NotAllowed as refused:
            finding = Diagnosis(UNSEEN, f"{refused} is not permitted", f"permit {refused}, or let somebody else look")
        except NotThere:
            finding = bad("it does not exist", "deploy it again, or correct the name that settings or the stack give")
        except SettingsError as error:
            finding = bad(str(error), "correct the setting, and deploy")
        yield DoctorLine(name, subject, *finding)


# Without AWS.


PROBLEM = "PROBLEM"
"""How Lambda begins the last result of a mapping that it cannot work with (API Reference,
EventSourceMappingConfiguration)."""


def settings_fit(app: App, settings: Settings) -> Diagnosis:
    """Whether settings fit an application. Raises ``SettingsError`` as a function does at its start."""
    check_settings(app, settings)
    served = [route for route in app.routes if settings.serves(route.group)]
    if not served:
        groups = " or ".join(sorted({route.group for route in app.routes}))
        return bad(f"STREAMFOLD_GROUP={settings.group!r} is no group of handlers", f"expected {groups or 'a handler'}")
    for route in served:
        derivation(route).check_settings(route, settings)
    check_parking(app, settings)
    if texts := undeclared_names(app, settings):
        return bad(" ".join(texts), "correct the name of the variable")
    return good(f"{len(settings.origins)} are set, the others have their defaults")


def source_account(app: App, function: LiveFunction, mapping: LiveMapping, logical: str | None) -> Diagnosis:
    """Whether a function may work with the table of a stream that is in another account than its own."""
    settings, own, found = function.settings, account_of(function.described["Role"]), account_of(mapping.source_arn)
    role = None if logical is None else settings.role_of(logical)
    variable = ROLE_PREFIX + environment_name(logical or MAIN.name)
    if role is not None and account_of_role(role) != found:
        return bad(
            f"the stream is of account {found}, and {variable} or STREAMFOLD_ROLE names {role}", "name a role of it"
        )
    if role is None and logical is not None and uses_table(app, settings, logical):
        return bad(
            f"the stream is of account {found}, and handlers use its table in account {own}",
            f"set STREAMFOLD_ROLE or {variable} to a role of account {found}; {manual('accounts')} says which",
        )
    if logical == MAIN.name and not settings.real_name(MAIN.name):
        return bad(
            "records of another account are refused, as of a test event", f"set STREAMFOLD_TABLE_MAIN={mapping.table}"
        )
    if str(mapping.content.get("LastProcessingResult", "")).startswith(PROBLEM):
        return bad(
            "Lambda cannot read the stream", "attach its policy, streamfold template --grants; and check its ARN"
        )
    return good(f"account {found}, {'by ' + role if role else 'of which nothing but the stream is used'}")


def byte_code(folder: Path, runtime: str) -> Diagnosis:
    """Whether the byte code of a build is of the function's Python."""
    if not folder.is_dir():
        return bad(f"{folder} is no folder", "build first, make build")
    pythons = pythons_of(folder)
    if not pythons:
        return good(f"{folder} has no byte code: the function starts slower")
    if others := ", ".join(sorted(pythons - {runtime})):
        return bad(
            f"{folder} has byte code of {others}, which {runtime} cannot use",
            f"build with {runtime}, make build BYTECODE=required",
        )
    return good(f"of {runtime}")


# With AWS.


def count_of_mappings(function: LiveFunction) -> Diagnosis:
    """Whether anything calls a function. That of the schedule has no mapping."""
    if not function.mappings and not function.described.get("Handler", "").endswith(BY_SCHEDULE):
        return bad("it has no event source mapping: nothing reaches it", "map the table's stream, or the queue, to it")
    return good(f"{len(function.mappings)} of them")


def older_code(settings: Settings) -> Diagnosis:
    if settings.older_code:
        return bad(
            "STREAMFOLD_OLDER_CODE is on: a function that lost a handler by mistake runs on without it",
            f"deploy with OlderCode=off when one version runs alone ({manual('changing-code')})",
        )
    return good("off")


def timeout(function: LiveFunction) -> Diagnosis:
    seconds, stop = int(function.described["Timeout"]), function.settings.stop_seconds
    if not timeout_rule(stop).accepts(seconds):
        return bad(
            f"{seconds} seconds, and no call is begun in the last {stop} (STREAMFOLD_STOP_SECONDS)",
            f"set Timeout to {timeout_seconds_min(stop):.0f} or more, for example {TIMEOUT_SECONDS[STREAM]}",
        )
    return good(f"{seconds} seconds")


def is_enabled(content: Mapping[str, Any]) -> Diagnosis:
    state = content.get("State", "")
    if state not in ("Enabled", "Enabling", "Creating", "Updating"):
        return bad(
            f"it is {state}: {content.get('StateTransitionReason', 'no reason is given')}",
            f"aws lambda update-event-source-mapping --uuid {content['UUID']} --enabled",
        )
    return good(state)


class MappingLine(NamedTuple):
    """A line about rules of a mapping, which says more than the rules do. {0} and {1} are values of the properties."""

    rules: tuple[DeploymentRule, ...]
    right: str
    wrong: str
    remedy: str


LINES = {
    "response type": MappingLine(
        (RESPONSES,),
        PARTIAL_RESPONSE[0],
        f"it lacks {PARTIAL_RESPONSE[0]}: Lambda takes a batch with failures for done, and they are lost",
        f"FunctionResponseTypes: [{PARTIAL_RESPONSE[0]}]",
    ),
    "starting position": MappingLine(
        (STARTS,),
        "{0}",
        "{0} misses records while a mapping is made",
        f"make it anew with StartingPosition: {STARTS.value}",
    ),
    "bisect": MappingLine(
        (HALVES,),
        "on",
        "a batch that ends the function is given up whole",
        "set BisectBatchOnFunctionError: true on the mapping",
    ),
    "limits": MappingLine(
        (RETRIES, AGE),
        "{0} retries, {1} seconds",
        "{0} retries, {1} seconds: without both limits a record is tried for ever, or lost",
        "set " + " and ".join(f"{each.property}: {choice_of(each.choice).default}" for each in (RETRIES, AGE)),
    ),
}


def mapping_lines(content: Mapping[str, Any], *checks: str) -> dict[str, Diagnose]:
    return {check: partial(_mapping_line, content, LINES[check]) for check in checks}


def _mapping_line(content: Mapping[str, Any], line: MappingLine) -> Diagnosis:
    rules = _rules(content)
    found = [(rule, rule.found(content)) for rule in line.rules]
    values = [FOREVER if value is ABSENT and rule.choice else value for rule, value in found]  # a limit that is missing
    if all(rules[rule.property].holds(content) for rule in line.rules):
        return good(line.right.format(*values))
    return bad(line.wrong.format(*values), line.remedy)


def _rules(content: Mapping[str, Any]) -> Mapping[str, DeploymentRule]:
    return mapping_rules(kinesis=":kinesis:" in str(content.get("EventSourceArn", "")))


def destination(mapping: LiveMapping) -> Diagnosis:
    if mapping.failures_to is None:
        return bad("records that are given up are lost", "set DestinationConfig.OnFailure to a bucket")
    if not DESTINATION.holds(mapping.content):
        return bad("only a bucket keeps whole records", "set DestinationConfig.OnFailure to a bucket")
    return good(mapping.failures_to.split(":")[2])


def mapping_settings(content: Mapping[str, Any], rules: Mapping[str, DeploymentRule] | None = None) -> Diagnosis:
    """The rules of a mapping that have no line of their own. ``rules``: those of a queue's mapping."""
    with_lines = {rule.property for line in LINES.values() for rule in (*line.rules, DESTINATION)}
    own = (rule for rule in (rules or _rules(content)).values() if rule.property not in with_lines)
    return obeys(content, *own, on="the mapping")


def obeys(content: Mapping[str, Any], *rules: DeploymentRule, on: str) -> Diagnosis:
    """Whether what is deployed obeys rules. ``on``: what it is."""
    wrong = [(rule, rule.found(content)) for rule in rules if not rule.holds(content)]
    if not wrong:
        return good(f"{len(rules)} settings are right")
    texts = (
        f"{rule.property} is {'missing' if value is ABSENT else value}: expected {rule.expected}"
        for rule, value in wrong
    )
    return bad("; ".join(texts), f"set {' and '.join(rule.property for rule, _ in wrong)} on {on}")


def partial_handlers(manifest: Manifest) -> Diagnosis:
    if found := manifest.partial:
        return bad(
            "; ".join(f"{name} since {since}" for name, since in sorted(found.items())),
            f"streamfold backfill {' '.join(sorted(found))} ({manual('backfill')})",
        )
    return (
        good("none")
        if manifest.revision
        else bad("the state knows no handler", "no function ran yet, or STREAMFOLD_STATE_TABLE names another state")
    )


def sample_value(template: str) -> str:
    """A value that a template of one key attribute takes, by its literal beginning."""
    literal, field, _ = template.partition("{")
    return literal + "0" if field else literal
