"""A review of a template: its functions as they are found, and the findings, each with resource and path.

A finding is *wrong* or *advice*, as the rule says that the value breaks. Values that only AWS knows are advice.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.deploy.functions import ENTRIES, STREAM, DeployedFunction, Deployment, Sort
from streamfold.deploy.rules import ADVICE, WRONG, DeploymentRule, Level
from streamfold.deploy.template_file import ABSENT, VARIABLE, Mapped, Resource, TemplateFile, Unknown
from streamfold.errors import shortened
from streamfold.settings.readers import PREFIX, SecretReference, secret_reference

VALUE_LETTERS_MAX = 120
LAMBDA_TYPES = ("AWS::Serverless::Function", "AWS::Lambda::Function")
VARIABLES = "Properties.Environment.Variables"
GROUP_VARIABLE = PREFIX + "GROUP"


class TemplateFinding(NamedTuple):
    """A difference between a template and the routes."""

    level: Level
    resource: str
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.resource} {self.path}: {self.text}".replace(" : ", ": ")


class FoundFunction(NamedTuple):
    """A function of a template that runs the application."""

    resource: Resource
    function: DeployedFunction
    variables: Mapping[str, Any]  # as they are written
    mappings: list[Mapped]

    @property
    def name(self) -> str:
        return self.resource.name

    @property
    def sort(self) -> Sort:
        return self.function.sort

    def serves(self, other: "FoundFunction") -> bool:
        return self.function.group in (None, other.function.group)


class Review:
    """A template, the deployment that it should be of, and the findings so far."""

    def __init__(
        self, template: TemplateFile, deployment: Deployment, module: str, runtime: str, builds: Path | None = None
    ) -> None:
        self.template = template
        self.builds = builds  # the folder with the built functions, by name
        self.deployment = deployment
        self.module = module
        self.runtime = runtime
        self.findings: list[TemplateFinding] = []
        for name in template.repeated:
            self.advise(name, "", "the name is there twice in one object, and only the last counts: expected it once")
        self.functions = list(self._functions())

    def wrong(self, resource: str, path: str, text: str) -> None:
        self.findings.append(TemplateFinding(WRONG, resource, path, text))

    def advise(self, resource: str, path: str, text: str) -> None:
        self.findings.append(TemplateFinding(ADVICE, resource, path, text))

    def of(self, sort: Sort) -> list[FoundFunction]:
        return [each for each in self.functions if each.sort == sort]

    def values(self, given: Mapping[str, Any], path: str) -> list[Any]:
        """What lies at a path of properties, with all its alternatives; ``ABSENT`` for nothing."""
        name, _, rest = path.partition(".")
        found: list[Any] = []
        for each in self.template.alternatives(given.get(name, ABSENT)):
            below = each
            for step in rest.split(".") if rest else ():
                below = below.get(step, ABSENT) if isinstance(below, Mapping) else ABSENT
            found.append(below)
        return found

    def variable(self, found: FoundFunction, name: str) -> Any:
        return self.template.first(found.variables.get(name, ABSENT))

    def named(self, value: Any) -> Resource | None:
        """The resource that a value names, as the template has it written."""
        return self.template.resource_of(self.template.first(value))

    def obey(self, at: tuple[str, str], given: Mapping[str, Any], *rules: DeploymentRule) -> None:
        """Notes each value that a rule does not accept. ``at``: the resource, and the path of ``given`` in it."""
        resource, before = at
        for rule, value in ((each, value) for each in rules for value in self.values(given, each.property)):
            path = f"{before}.{rule.property}" if before else rule.property
            if isinstance(value, Unknown):
                self.advise(resource, path, f"{value.text} is known to AWS only: expected {rule.expected}")
            elif not rule.accepts(value):
                text = f"{described(value)}: expected {rule.expected}"
                self.findings.append(TemplateFinding(rule.level, resource, path, text))

    def _functions(self) -> Iterator[FoundFunction]:
        for resource in self.template.of_type(*LAMBDA_TYPES):
            given = resource.properties.get("Environment")
            variables = (given.get("Variables") if isinstance(given, Mapping) else None) or {}
            handler = self.template.first(resource.properties.get("Handler", ABSENT))
            if not self._is_ours(handler, variables):
                continue
            sort = self._sort(resource.name, str(handler))
            if sort is not None:
                group = (
                    self._group(resource.name, variables) if sort == STREAM or variables.get(GROUP_VARIABLE) else None
                )
                function = DeployedFunction(sort, group, self.deployment.routes(group), str(handler))
                yield FoundFunction(resource, function, variables, self.template.mappings(resource))

    def _is_ours(self, handler: Any, variables: Mapping[str, Any]) -> bool:
        if not isinstance(handler, str):
            return False
        module = handler.replace("/", ".").rpartition(".")[0]
        return module == self.module or any(name.startswith(PREFIX) for name in variables)

    def _sort(self, name: str, handler: str) -> Sort | None:
        # Lambda takes the text behind the last dot for the name, and slashes before it for dots (python-handler).
        path, _, entry = handler.rpartition(".")
        module = path.replace("/", ".")
        try:
            found = getattr(import_module(module), entry, None) if module else None
        except Exception as error:  # noqa: BLE001 - an import runs any code
            self.wrong(name, "Properties.Handler", f"{handler} cannot be imported: {error}")
            return None
        for sort, way in ENTRIES.items():
            if found is not None and found == getattr(self.deployment.app, way):
                return sort
        if module == self.module or found is None:
            known = ", ".join(f"{self.module}.{way}" for way in ENTRIES.values())
            self.wrong(name, "Properties.Handler", f"{handler} is no way into the application: expected one of {known}")
        return None

    def _group(self, name: str, variables: Mapping[str, Any]) -> str | None:
        group = self.template.first(variables.get(GROUP_VARIABLE, ABSENT))
        if group is ABSENT or isinstance(group, Unknown):
            return None
        if group not in self.deployment.groups:
            known = " or ".join(self.deployment.groups)
            self.wrong(
                name,
                f"{VARIABLES}.{GROUP_VARIABLE}",
                f"{group} is no group of the application's handlers: expected {known}",
            )
        return str(group)


def referred_secret(setting: str, value: Any) -> SecretReference | None:
    """The secret that the value of a setting refers to, with parameters as they are named; None for another value.

    Raises ``SettingsError`` for a reference to no secret.
    """
    return secret_reference(setting, VARIABLE.sub(r"\1", value) if isinstance(value, str) else value)


def described(value: Any) -> str:
    """A value for a message."""
    if value is ABSENT:
        return "it is missing"
    return f"it is {shortened(str(value), VALUE_LETTERS_MAX)}"
