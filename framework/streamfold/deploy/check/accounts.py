"""The roles of other accounts that functions of a template work by: each is a role, and state and rows share one."""

from streamfold.deploy.check.review import VARIABLES, FoundFunction, Review
from streamfold.deploy.template_file import Unknown
from streamfold.errors import SettingsError
from streamfold.routes.accounts import check_accounts
from streamfold.settings import ROLE_PREFIX, Settings
from streamfold.settings.accounts import OWN, ROLE_ARN
from streamfold.settings.readers import PREFIX

VARIABLE = PREFIX + "ROLE"


def is_role(variable: str) -> bool:
    """Whether a variable of a function names a role of another account."""
    return variable == VARIABLE or (variable.startswith(ROLE_PREFIX) and variable != ROLE_PREFIX)


def roles_of(review: Review, found: FoundFunction) -> Settings:
    """The roles that a function's variables name, without those that ``check_roles`` notes."""
    texts = {name: review.variable(found, name) for name in found.variables if is_role(name)}
    given = {name: text for name, text in texts.items() if text == OWN or ROLE_ARN.fullmatch(str(text))}
    return Settings.from_environment({name: text for name, text in given.items() if name != VARIABLE or text != OWN})


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
