"""The functions of a template: that every group of handlers has one, their settings, and the limits of each."""

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import Any

from streamfold.deploy import rules
from streamfold.deploy.check.review import GROUP_VARIABLE, VARIABLES, FoundFunction, Review, described, referred_secret
from streamfold.deploy.functions import QUEUE, STATE_TABLE, STREAM, VERIFIER
from streamfold.deploy.template_file import ABSENT, Unknown
from streamfold.derivations.derivation import fans_out
from streamfold.errors import SettingsError, manual
from streamfold.routes.checks import check_accounts
from streamfold.settings import (
    INDEX_PREFIX,
    ROLE_PREFIX,
    SECRETS,
    TABLE_PREFIX,
    Settings,
    undeclared_indexes,
    undeclared_tables,
)
from streamfold.settings.limits import STOP_SECONDS
from streamfold.settings.readers import OWN, PREFIX, ROLE_ARN

SAME_EVERYWHERE = ("EPOCH", "RETENTION_DAYS", "AUDIT_KEY", "STATE_TABLE")
"""Settings that functions of one state must not have different values of."""
ROLE = PREFIX + "ROLE"
PLACEHOLDER = "https://name.known.at/deployment"
"""A value that only a deployment knows, in a form that each reader of a setting takes."""


def check_functions(review: Review) -> None:
    """Notes what is wrong with the functions themselves."""
    for found in review.functions:
        _check_properties(review, found)
        _check_byte_code(review, found)
        _check_variables(review, found)
    _check_urls(review)
    _check_groups(review)
    _check_same(review)
    _check_others(review)


def _check_properties(review: Review, found: FoundFunction) -> None:
    given, at = found.resource.properties, (found.name, "Properties")
    review.obey(at, given, rules.runtime_rule(review.runtime), *rules.FUNCTION_RULES)
    _check_timeout(review, found)
    if found.sort == QUEUE:
        review.obey(at, given, rules.RECURSION)


def _check_byte_code(review: Review, found: FoundFunction) -> None:
    """Byte code of another Python is half of an archive and of no use: a function compiles it all at each start."""
    pythons = rules.pythons_of(review.builds / found.name) if review.builds is not None else set()
    runtime = review.template.first(found.resource.properties.get("Runtime", ABSENT))
    if isinstance(runtime, str) and (others := sorted(pythons - {runtime})):
        built = " and ".join(each.removeprefix("python") for each in others)
        text = f"it is {runtime}, and the built function has byte code of Python {built}: build it again"
        review.wrong(found.name, "Properties.Runtime", text)


def _check_variables(review: Review, found: FoundFunction) -> None:
    own = {name: value for name, value in found.variables.items() if name.startswith(PREFIX)}
    texts = {name: review.template.first(value) for name, value in own.items()}
    for name, value in own.items():
        _check_variable(review, found, name, value)
    for name in _required(review, found):
        if texts.get(name, ABSENT) is ABSENT:
            review.wrong(found.name, f"{VARIABLES}.{name}", f"it is missing: {_reason(review, found, name)}")
    prefixed = {
        prefix: {name.removeprefix(prefix): PLACEHOLDER for name in own if name.startswith(prefix) and name != prefix}
        for prefix in (TABLE_PREFIX, INDEX_PREFIX)
    }
    settings = Settings(tables=prefixed[TABLE_PREFIX], indexes=prefixed[INDEX_PREFIX])
    declared = {name: name for route in review.deployment.app.routes for name in route.kind.indexes(route)}
    for text in (*undeclared_tables(settings, review.deployment.app.tables), *undeclared_indexes(settings, declared)):
        name = text.partition(" ")[0]
        review.wrong(found.name, f"{VARIABLES}.{name}", text)


def _check_variable(review: Review, found: FoundFunction, name: str, value: Any) -> None:
    path, setting = f"{VARIABLES}.{name}", name.removeprefix(PREFIX).lower()
    if setting in SECRETS:
        try:
            is_hidden = review.template.is_parameter_hidden(value) or _are_references(review, name, value)
        except SettingsError as error:
            review.wrong(found.name, path, _of_value(str(error).removeprefix(f"Setting {name}")))
            return
        if not is_hidden:
            review.wrong(
                found.name,
                path,
                "a secret is written into the template: expected a reference to Secrets Manager, "
                "secretsmanager:NAME, or to the Parameter Store, ssm:NAME, which the function reads by itself",
            )
        return
    for each in review.template.alternatives(value):
        if each is ABSENT:
            continue
        known = not isinstance(each, Unknown) and "${" not in str(each) and "{{resolve:" not in str(each)
        text = (str(each).lower() if isinstance(each, bool) else str(each)) if known else PLACEHOLDER
        try:
            Settings.from_environment({name: text} if known or setting not in NUMBERS else {})
        except SettingsError as error:
            review.wrong(found.name, path, _of_value(str(error).removeprefix(f"Setting {name}")))
            continue
        _check_meaning(review, found, name, text)


def _are_references(review: Review, name: str, value: Any) -> bool:
    given = [each for each in review.template.alternatives(value) if each is not ABSENT]
    return bool(given) and all(referred_secret(name, each) is not None for each in given)


def _of_value(text: str) -> str:
    """What is wrong with a setting, without its name: the path has it."""
    if not text.startswith("="):
        return f"it{text}"
    return "it is " + text[1:].replace(" does not fit: expected", ": expected").replace(" is not known: ", ": ")


NUMBERS = ("epoch", "chunk_actions", "lanes", "retention_days", "stop_seconds", "gate_seconds", "older_code")
"""Settings whose readers take no placeholder."""


def _check_meaning(review: Review, found: FoundFunction, name: str, text: str) -> None:
    path, setting = f"{VARIABLES}.{name}", name.removeprefix(PREFIX).lower()
    if setting == "engine":
        review.wrong(found.name, path, "a function with it works on a local file: expected no such setting on AWS")
    elif setting == "observe" and text == "off":
        text = "no metric of the function is written, and alarms on refused, parked and different items never rise"
        review.wrong(found.name, path, f"it is off: {text}. Expected lines, powertools or traced")
    elif setting == "older_code" and Settings.from_environment({name: text}).older_code:
        review.advise(found.name, path, "it is on, for a rollback: set it off once one version runs again")
    elif setting == "handlers_off":
        known = {route.name for route in review.deployment.app.routes}
        for handler in Settings.from_environment({name: text}).handlers_off:
            if handler not in known:
                review.wrong(found.name, path, f"{handler} is no handler of the application")
    elif setting == "park" and not text.startswith(("s3://", "https://")):
        review.wrong(found.name, path, f"it is {text}: expected s3://BUCKET/PREFIX, or the URL of a queue")


def _required(review: Review, found: FoundFunction) -> Iterable[str]:
    yield from review.deployment.environment_names.values()
    yield STATE_TABLE
    function = found.function
    if function.sort == QUEUE:
        yield PREFIX + "JOBS"
    if function.sort != VERIFIER and any(route.policy.parks for route in function.routes):
        yield PREFIX + "PARK"
    if function.sort != VERIFIER and function.searches:
        yield PREFIX + "SEARCH"


def _reason(review: Review, found: FoundFunction, name: str) -> str:
    """Why a function needs a setting, and what to give."""
    if name.startswith(TABLE_PREFIX):
        table = next(each for each, variable in review.deployment.environment_names.items() if variable == name)
        own = found.function.routes
        routes = [route.name for route in own if table in {key.table.name for key in route.reads}]
        return f"handlers {_some(routes)} read table {table!r}; expected its real name, or a reference to it"
    searches = [route.name for route in found.function.routes if route.kind.indexes(route)]
    return {
        STATE_TABLE: "expected the name of the state table",
        PREFIX + "JOBS": "expected the URL of the queue that calls this function",
        PREFIX + "PARK": "handlers park records, on_error='park'; expected s3://BUCKET/PREFIX",
        PREFIX + "SEARCH": f"the group has searches {_some(searches)}; expected https://HOST, or "
        f"another group, {GROUP_VARIABLE}",
    }[name]


def _some(names: Iterable[str]) -> str:
    first = list(dict.fromkeys(names))
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")


def _check_timeout(review: Review, found: FoundFunction) -> None:
    """No call is begun in the last seconds: with less a function does nothing, and with little more hardly anything."""
    name = PREFIX + "STOP_SECONDS"
    stop = rules.number(review.variable(found, name))
    rule = rules.timeout_rule(STOP_SECONDS if stop is None else stop)
    at, given = (found.name, "Properties"), found.resource.properties
    timeout = rules.number(review.template.first(given.get("Timeout", 3)))
    if timeout is None or rule.accepts(timeout):
        review.obey(at, given, rules.ample_timeout_rule(found.sort))
    elif stop is None:
        review.obey(at, given, rule)
    else:
        text = f"it is {stop:.0f} beside a Timeout of {timeout:.0f}: expected a Timeout of {rule.expected}"
        review.wrong(found.name, f"{VARIABLES}.{name}", text)


def _check_urls(review: Review) -> None:
    for kind, named, rule in (
        ("AWS::Lambda::Url", "TargetFunctionArn", rules.url_rule),
        ("AWS::Lambda::Permission", "FunctionName", rules.caller_rule),
    ):
        for resource, found in product(review.template.of_type(kind), review.functions):
            if review.template.is_named(found.resource, resource.properties.get(named)):
                review.obey((resource.name, "Properties"), resource.properties, rule(found.name))


def _check_groups(review: Review) -> None:
    """Every group of handlers runs in one function: none is left out, and none runs twice."""
    functions = review.of(STREAM)
    for group in review.deployment.groups:
        serving = [each for each in functions if each.function.group in (None, group)]
        routes = review.deployment.routes(group)
        if not serving:
            _miss_group(review, group, only_searches=all(route.kind.indexes(route) for route in routes))
        if len(serving) > 1:
            named = next((each for each in serving if each.function.group is None), serving[-1])
            others = " and ".join(each.name for each in serving if each is not named)
            review.wrong(
                named.name,
                f"{VARIABLES}.{GROUP_VARIABLE}",
                f"it runs the handlers of group {group}, which {others} runs too: expected one function for each group",
            )
    for found in functions:
        if found.function.group is None and len(review.deployment.groups) > 1 and len(functions) == 1:
            review.advise(
                found.name,
                f"{VARIABLES}.{GROUP_VARIABLE}",
                f"it is missing, and the function runs the groups {', '.join(review.deployment.groups)} alike",
            )


def _miss_group(review: Review, group: str, *, only_searches: bool) -> None:
    names = _some(route.name for route in review.deployment.routes(group))
    expected = f"expected a function with {GROUP_VARIABLE}={group} and Handler {review.deployment.entry(STREAM)}"
    if only_searches:
        review.advise("Resources", "", f"no function runs the searches {names}, which have no documents; {expected}")
    else:
        review.wrong("Resources", "", f"no function runs the handlers {names} of group {group}: {expected}")


def _check_same(review: Review) -> None:
    """Functions of one state agree on its table, and on what the state's keys and lives are made of."""
    names = [PREFIX + name for name in SAME_EVERYWHERE] + list(review.deployment.environment_names.values())
    for name in names:
        texts = {each.name: str(review.variable(each, name)) for each in review.functions}
        if name == STATE_TABLE or name.startswith(TABLE_PREFIX):  # a missing one is named by itself
            texts = {each: text for each, text in texts.items() if text != str(ABSENT)}
        elif name.endswith(("EPOCH", "RETENTION_DAYS", "AUDIT_KEY")):  # nothing is compared by a function that reads
            texts = {each.name: texts[each.name] for each in review.functions if each.sort != VERIFIER}
        if len(set(texts.values())) > 1:
            usual = Counter(texts.values()).most_common(1)[0][0]
            for function, text in texts.items():
                if text != usual:
                    review.wrong(
                        function,
                        f"{VARIABLES}.{name}",
                        f"{_own(name, text)}, and {_own(name, usual)} in other functions: expected one value in "
                        "all that work on one state",
                    )


def _own(name: str, text: str) -> str:
    if name.endswith("AUDIT_KEY"):
        return "it has a value" if text != str(ABSENT) else "it has none"
    return described(ABSENT if text == str(ABSENT) else text)


def _check_others(review: Review) -> None:
    """The functions that may be left out."""
    for each in review.of(STREAM):
        jobs = review.variable(each, PREFIX + "JOBS")
        if each.function.fans_out and jobs is ABSENT:
            fanning = _some(route.name for route in each.function.routes if fans_out(route))
            review.advise(
                each.name,
                f"{VARIABLES}.{PREFIX}JOBS",
                f"it is missing: handlers {fanning} open fan-outs, and feeds and lookups stop at the first batch "
                f"without a queue ({manual('fan-outs')})",
            )
        elif each.function.fans_out and not any(queue.serves(each) for queue in review.of(QUEUE)):
            is_here = review.template.resource_of(jobs) is not None
            where = "of this template " if not is_here else ""
            note = review.wrong if is_here else review.advise
            note(
                each.name,
                f"{VARIABLES}.{PREFIX}JOBS",
                f"{described(jobs)}, and no function {where}works on its segments, so that fan-outs never end: "
                f"expected one with Handler {review.deployment.entry(QUEUE)}, which the queue calls",
            )
    if not review.of(VERIFIER):
        review.advise(
            "Resources",
            "",
            f"nothing compares a sample each day: expected a function {review.deployment.entry(VERIFIER)}",
        )


def is_role(variable: str) -> bool:
    """Whether a variable of a function names a role of another account."""
    return variable == ROLE or (variable.startswith(ROLE_PREFIX) and variable != ROLE_PREFIX)


def roles_of(review: Review, found: FoundFunction) -> Settings:
    """The roles that a function's variables name, without those that ``check_roles`` notes."""
    texts = {name: review.variable(found, name) for name in found.variables if is_role(name)}
    given = {name: text for name, text in texts.items() if text == OWN or ROLE_ARN.fullmatch(str(text))}
    return Settings.from_environment({name: text for name, text in given.items() if name != ROLE or text != OWN})


def check_roles(review: Review) -> None:
    """Notes variables that name no role, rows in another account than the state, and functions that differ."""
    by_function = {found.name: _roles(review, found) for found in review.functions}
    for found in review.functions:
        roles = by_function[found.name]
        if roles is None:
            continue
        try:
            check_accounts(found.function.routes, Settings.from_environment(roles).role_of)
        except SettingsError as error:
            review.wrong(found.name, VARIABLES, str(error))
    named = {name: roles for name, roles in by_function.items() if roles is not None}
    if len({tuple(sorted(roles.items())) for roles in named.values()}) > 1:
        names = ", ".join(named)
        review.wrong(names.partition(",")[0], VARIABLES, f"{names} name different roles: expected the same in each")


def _roles(review: Review, found: FoundFunction) -> dict[str, str] | None:
    roles: dict[str, str] = {}
    for variable in filter(is_role, found.variables):
        value = review.variable(found, variable)
        if isinstance(value, Unknown) or "${" in str(value):
            text = f"{value} is known to AWS only: expected arn:aws:iam::ACCOUNT:role/NAME"
            review.advise(found.name, f"{VARIABLES}.{variable}", text)
            return None
        try:
            Settings.from_environment({variable: str(value)})
        except SettingsError as error:
            review.wrong(found.name, f"{VARIABLES}.{variable}", str(error))
            return None
        roles[variable] = str(value)
    return roles
