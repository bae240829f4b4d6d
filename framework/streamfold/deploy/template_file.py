"""A template of SAM or CloudFormation as it lies in a file, in YAML or JSON, with its values as far as they are known.

``!Ref Table`` becomes the text ``${Table}``, ``!GetAtt Table.Arn`` the text ``${Table.Arn}``, and so do ``!Sub``,
``!Join`` and the ARN that somebody wrote out: one thing has one text. A parameter is its default. A value that
follows from a condition has alternatives, and a check looks at each of them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.errors import SettingsError

ALTERNATIVES_MAX = 32
"""Of one value: more conditions than five within one property are not taken apart."""
VARIABLE = re.compile(r"\$\{([A-Za-z0-9:.]+)\}")
OWN_LOCATION = r"(?:Region|\$\{\w+\}|\*)?:(?:AccountId|\$\{\w+\}|\*)?"
"""Region and account of an ARN that may be the stack's own: as pseudo parameters, as parameters, or any."""
ARNS = (
    (re.compile(rf"arn:[^:]+:dynamodb:{OWN_LOCATION}:table/(\$\{{\w+\}})$"), ".Arn"),
    (re.compile(r"arn:[^:]+:s3:::(\$\{\w+\})(?=$|/)"), ".Arn"),
    (re.compile(rf"arn:[^:]+:sqs:{OWN_LOCATION}:(\$\{{\w+)\.QueueName\}}$"), ".Arn"),
    (re.compile(rf"arn:[^:]+:logs:{OWN_LOCATION}:log-group:(\$\{{\w+\}}):\*$"), ".Arn"),
)
"""ARNs that name a resource by its name, in place of ``!GetAtt NAME.Arn``. One with a region or an account written out
stays as it is, because it is the resource's only where the stack lies there. The colons of a pseudo parameter's text
are those of ``PSEUDO`` below."""
PSEUDO = re.compile(r"\$\{AWS::(\w+)\}")
NAME_PROPERTIES = (
    "TableName",
    "QueueName",
    "BucketName",
    "FunctionName",
    "RoleName",
    "LogGroupName",
    "AlarmName",
    "Name",
)
"""Properties by which a resource has a name of its own, which other values may give in place of a reference."""
ARN_ENDS = {
    "AWS::DynamoDB::Table": ("dynamodb", "table/"),
    "AWS::S3::Bucket": ("s3", ""),
    "AWS::SQS::Queue": ("sqs", ""),
    "AWS::Logs::LogGroup": ("logs", "log-group:"),
    "AWS::Kinesis::Stream": ("kinesis", "stream/"),
    "AWS::CloudWatch::Alarm": ("cloudwatch", "alarm:"),
    "AWS::CloudWatch::CompositeAlarm": ("cloudwatch", "alarm:"),
}
"""The service of a resource's ARN, and what is before the name at its end."""
DYNAMIC = "{{resolve:"
"""Begins a dynamic reference, to Secrets Manager or the Parameter Store."""


class Unknown(NamedTuple):
    """A value that only a deployment knows: of a parameter without a default, or of a function of CloudFormation."""

    text: str
    parameter: str = ""


class NoValue:
    """The type of ``ABSENT``."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = NoValue()
"""``AWS::NoValue``: the property is not there."""


def read_template(file: Path) -> "TemplateFile":
    """The template of a file. Raises ``SettingsError`` for a file that holds none."""
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is no text in UTF-8: expected a template of SAM or CloudFormation.") from None
    repeated: list[str] = []
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else _read_yaml(file, text, repeated)
    except ValueError as error:
        raise SettingsError(f"{file} cannot be read as a template: {error}") from None
    if not isinstance(found, Mapping) or not isinstance(found.get("Resources"), Mapping):
        raise SettingsError(f"{file} has no Resources: expected a template of SAM or CloudFormation.")
    broken = [name for name, each in found["Resources"].items() if not isinstance(each, Mapping) or "Type" not in each]
    if broken:
        raise SettingsError(f"{file}: resource {broken[0]} has no Type: expected Type and Properties.")
    return TemplateFile(found, tuple(repeated))


def yaml_module() -> Any:
    """PyYAML; None where the extra ``deploy`` is not installed."""
    try:
        import yaml
    except ImportError:
        return None
    return yaml


def _read_yaml(file: Path, text: str, repeated: list[str]) -> Any:
    yaml = yaml_module()
    if yaml is None:
        raise SettingsError(
            f'{file} is YAML, which needs PyYAML: install "streamfold[deploy]", or give the template as JSON.'
        )

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # there with libyaml only
        """Knows the short forms of CloudFormation's functions, and notes a name that an object holds twice."""

    def function(loader: Any, suffix: str, node: Any) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return {f"Fn::{suffix}": loader.construct_sequence(node, deep=True)}
        if isinstance(node, yaml.MappingNode):
            return {f"Fn::{suffix}": loader.construct_mapping(node, deep=True)}
        value = loader.construct_scalar(node)
        return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}

    def members(loader: Any, node: Any) -> Any:
        # The last of two would win in silence.
        names = [key.value for key, _ in node.value]
        repeated.extend({str(name) for name in names if names.count(name) > 1 and name != "<<"})
        return loader.construct_mapping(node, deep=True)

    Loader.add_multi_constructor("!", function)
    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, members)
    # Dates of policies are text: "2012-10-17" without quotes too.
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(where + " ".join(str(getattr(error, "problem", None) or error).split())) from None


def file_text(content: Mapping[str, Any]) -> str:
    """A template as ``template.yaml`` holds it: YAML, or JSON, which is YAML too, without the extra ``deploy``."""
    yaml = yaml_module()
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n" if yaml is None else as_yaml(content, yaml)


def as_yaml(template: Mapping[str, Any], yaml: Any) -> str:
    """A template in YAML, with the short forms of CloudFormation's functions."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types here
        """Writes functions of CloudFormation as tags, and no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

    def mapping(dumper: Any, value: Mapping[str, Any]) -> Any:
        if len(value) == 1:
            ((name, given),) = value.items()
            tag = "!" + name.removeprefix("Fn::")
            if name == "Fn::GetAtt":
                return dumper.represent_scalar(tag, ".".join(given))
            if name in ("Ref", "Fn::Sub", "Condition") and isinstance(given, str):
                return dumper.represent_scalar(tag, given, style="|" if "\n" in given else None)
            if name.startswith("Fn::") and isinstance(given, list):
                return dumper.represent_sequence(tag, given)
        return dumper.represent_dict(value.items())

    Dumper.add_representer(dict, mapping)
    text = yaml.dump(dict(template), Dumper=Dumper, sort_keys=False, width=118, allow_unicode=True)
    return str(text)


class Resource(NamedTuple):
    """A resource of a template."""

    name: str
    type: str
    body: Mapping[str, Any]  # with Properties, DeletionPolicy, ...

    @property
    def properties(self) -> Mapping[str, Any]:
        found = self.body.get("Properties")
        return found if isinstance(found, Mapping) else {}


class Mapped(NamedTuple):
    """An event source of a function: an event of SAM, or a resource of CloudFormation."""

    resource: str
    path: str  # of its properties below the resource
    type: str  # DynamoDB, Kinesis, SQS, Schedule, or another of SAM's types
    source: Any  # of a mapping: the stream or the queue
    properties: Mapping[str, Any]
    name: str  # of the mapping as a resource, by which alarms find it


@dataclass
class TemplateFile:
    """A template: its resources, and what their values are."""

    content: Mapping[str, Any]
    repeated: tuple[str, ...] = ()  # names that an object of the file holds twice, of which the last counts
    resources: dict[str, Resource] = field(init=False)

    def __post_init__(self) -> None:
        shared = self.content.get("Globals")
        functions = shared.get("Function", {}) if isinstance(shared, Mapping) else {}
        self.resources = {}
        for name, body in self.content["Resources"].items():
            is_given = functions and body["Type"] == "AWS::Serverless::Function"
            given = {"Properties": _below(functions, body.get("Properties") or {})} if is_given else {}
            self.resources[name] = Resource(name, str(body["Type"]), {**body, **given})

    def of_type(self, *types: str) -> list[Resource]:
        return [each for each in self.resources.values() if each.type in types]

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        found = self.content.get("Parameters")
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def _named(self) -> Mapping[str, str]:
        """Resources by the names that they give themselves."""
        return {found: each.name for each in self.resources.values() for found in self._own_names(each)}

    def _own_names(self, resource: Resource) -> list[str]:
        """The names that a resource gives itself, also composed ones: ``${AWS::StackName}-orders``.

        A reference is no name of its own: the ``FunctionName`` of a mapping names another resource.
        """
        given = [self.first(resource.properties.get(name, ABSENT)) for name in NAME_PROPERTIES]
        return [name for name in given if isinstance(name, str) and not self._refers(name)]

    def _refers(self, text: str) -> bool:
        found = VARIABLE.fullmatch(text)
        return found is not None and found[1].partition(".")[0] in self.resources

    def alternatives(self, value: Any) -> list[Any]:
        """The values that a value may have, each as plain values and texts."""
        found: list[Any] = []
        for each in islice(self._all(value), ALTERNATIVES_MAX):
            if each not in found:
                found.append(each)
        return found

    def first(self, value: Any) -> Any:
        return next(self._all(value))

    def _all(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping):
            if len(value) == 1:
                ((name, given),) = value.items()
                if name == "Ref" or name.startswith("Fn::"):
                    yield from self._functions(name, given)
                    return
            for found in product(*(list(islice(self._all(each), ALTERNATIVES_MAX)) for each in value.values())):
                both = zip(value, found, strict=True)
                yield {name: each for name, each in both if each is not ABSENT}
        elif isinstance(value, list):
            for found in product(*(list(islice(self._all(each), ALTERNATIVES_MAX)) for each in value)):
                yield [each for each in found if each is not ABSENT]
        else:
            yield value

    def _functions(self, name: str, given: Any) -> Iterator[Any]:
        if name == "Fn::If" and isinstance(given, list) and len(given) == 3:
            yield from self._all(given[1])
            yield from self._all(given[2])
        elif name == "Ref":
            yield self._referred(str(given))
        elif name == "Fn::GetAtt":
            yield canonical(f"${{{'.'.join(given) if isinstance(given, list) else given}}}")
        elif name == "Fn::Sub":
            yield self._substituted(*(given if isinstance(given, list) else [given]))
        elif name == "Fn::Join" and isinstance(given, list) and isinstance(given[1], list):
            pieces = [self.first(each) for each in given[1]]
            known = all(isinstance(each, str | int) for each in pieces)
            yield canonical(str(given[0]).join(map(str, pieces))) if known else Unknown(name)
        else:
            yield Unknown(f"{name} {given}")

    def _referred(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return ABSENT
        if name not in self.parameters:
            return f"${{{name}}}"
        declared = self.parameters[name]
        if "Default" not in declared or str(declared.get("Type", "")).startswith("AWS::SSM::"):
            return Unknown(f"parameter {name}", name)
        default = declared["Default"]
        if default == "":  # not given: what needs it has a condition
            return Unknown(f"parameter {name}", name)
        if declared.get("Type") == "Number" and isinstance(default, str):
            return float(default) if "." in default else int(default)
        if str(declared.get("Type", "")).startswith(("CommaDelimitedList", "List<")):
            return str(default).split(",")
        return default

    def _substituted(self, text: Any, given: Mapping[str, Any] | None = None) -> Any:
        def replaced(found: re.Match[str]) -> str:
            name = found[1]
            value = self.first(given[name]) if given and name in given else self._referred(name)
            return found[0] if isinstance(value, Unknown) else str(value)

        return canonical(VARIABLE.sub(replaced, str(text)))

    def resource_of(self, value: Any) -> Resource | None:
        """The resource that a text names: by a reference, or by the name that the resource gives itself."""
        if not isinstance(value, str):
            return None
        if value in self._named:
            return self.resources[self._named[value]]
        named = [found.partition(".")[0] for found in VARIABLE.findall(value)]
        for name in named:
            if name in self.resources:
                return self.resources[name]
        if value.startswith("arn:"):
            return next((each for each in self.resources.values() if self.is_arn_of(each, value)), None)
        return None

    def is_arn_of(self, resource: Resource, text: str) -> bool:
        """Whether a text is the ARN of a resource: a reference, or an ARN with its name, which may be written out."""
        if text == f"${{{resource.name}.Arn}}":
            return True
        own = [PSEUDO.sub(r"\1", name) for name in self._own_names(resource)]
        pieces = PSEUDO.sub(r"\1", text).split(":", 5)
        service, before = ARN_ENDS.get(resource.type, ("", ""))
        if len(pieces) < 6 or pieces[0] != "arn" or pieces[2] != service:
            return False
        named = [f"${{{resource.name}}}", f"${{{resource.name}.QueueName}}", *own]
        return pieces[5].removesuffix(":*") in [before + name for name in named]

    def is_parameter_hidden(self, value: Any) -> bool:
        """Whether a value is a parameter that AWS shows nobody (``NoEcho``), or a dynamic reference to a secret."""
        if isinstance(value, Mapping) and set(value) == {"Ref"}:
            hidden = self.parameters.get(str(value["Ref"]), {}).get("NoEcho", False)
            return str(hidden).lower() == "true"
        text = self.first(value)
        return isinstance(text, Unknown) or (isinstance(text, str) and DYNAMIC in text)

    def mappings(self, function: Resource) -> list[Mapped]:
        """What starts a function: its events in SAM, and the mappings and schedules that name it."""
        found = []
        events = function.properties.get("Events")
        for name, event in (events if isinstance(events, Mapping) else {}).items():
            given = event.get("Properties") or {}
            source = given.get("Stream", given.get("Queue"))
            path = f"Properties.Events.{name}.Properties"
            found.append(Mapped(function.name, path, str(event.get("Type")), source, given, f"{function.name}{name}"))
        for each in self.of_type("AWS::Lambda::EventSourceMapping"):
            if self.is_named(function, each.properties.get("FunctionName")):
                source = each.properties.get("EventSourceArn")
                kind = self._source_type(self.first(source))
                found.append(Mapped(each.name, "Properties", kind, source, each.properties, each.name))
        for each in self.of_type("AWS::Events::Rule", "AWS::Scheduler::Schedule"):
            targets = each.properties.get("Targets") or [each.properties.get("Target") or {}]
            for number, target in enumerate(targets):
                if self.is_named(function, target.get("Arn")):
                    path = f"Properties.Targets.{number}" if "Targets" in each.properties else "Properties.Target"
                    schedule = each.properties.get("ScheduleExpression")
                    given = {**each.properties, **target, "Schedule": schedule}
                    found.append(Mapped(each.name, path, "Schedule", None, given, each.name))
        return found

    def is_named(self, function: Resource, value: Any) -> bool:
        """Whether a value names a function, or a version or an alias of it."""
        named = self.resource_of(self.first(value))
        while named is not None and named.type in ("AWS::Lambda::Alias", "AWS::Lambda::Version"):
            named = self.resource_of(self.first(named.properties.get("FunctionName")))
        return named is not None and named.name == function.name

    def _source_type(self, source: Any) -> str:
        resource = self.resource_of(source)
        text = resource.type if resource is not None else str(source)
        return "SQS" if "SQS" in text or ":sqs:" in text else "Kinesis" if "inesis" in text else "DynamoDB"


def canonical(text: str) -> str:
    """A text in which the ARN of a resource that somebody composed is ``${NAME.Arn}``."""
    if "arn:" not in text:
        return text
    plain = PSEUDO.sub(r"\1", text)
    for pattern, attribute in ARNS:
        if found := pattern.match(plain):
            return f"{found[1].removesuffix('}')}{attribute}}}{plain[found.end() :]}"
    return text


WRITTEN_LOCATION = re.compile(r"arn:[^:]+:(?:dynamodb|sqs|logs|kinesis|es|aoss|kms):([^:]*):([^:]*):")


def written_location(text: str) -> str:
    """The region and the account that an ARN writes out, for a person; empty without any."""
    found = WRITTEN_LOCATION.match(PSEUDO.sub(r"\1", text))
    if found is None:
        return ""
    region = f"region {found[1]}" if re.fullmatch("[a-z0-9-]+", found[1]) else ""
    account = f"account {found[2]}" if found[2].isdecimal() else ""
    return " and ".join(filter(None, (region, account)))


def is_bucket_arn(text: str) -> bool:
    return re.fullmatch(r"arn:[^:]+:s3:::[^/]+", PSEUDO.sub(r"\1", text)) is not None


def _below(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of a function, with SAM's ``Globals`` below them: objects are merged, lists joined."""
    found = {**shared, **own}
    for name in shared.keys() & own.keys():
        if isinstance(shared[name], Mapping) and isinstance(own[name], Mapping):
            found[name] = _below(shared[name], own[name])
        elif isinstance(shared[name], list) and isinstance(own[name], list):
            found[name] = [*shared[name], *own[name]]
    return found
