"""What an application needs, as plain JSON for CDK, Terraform and others, and the notes of what a person should know.

``${Table.Arn}`` in a text is the ARN of what the SAM template calls ``Table``, and ``${Table}`` its name.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from streamfold.deploy.check.mappings import tables_of
from streamfold.deploy.check.review import Review
from streamfold.deploy.filters import Filter, united
from streamfold.deploy.functions import STREAM
from streamfold.deploy.rules import READERS_MAX, TOO_MANY_READERS
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import TemplateFile, Unknown

STORED = ("AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::S3::Bucket")
OF_FUNCTION = ("Handler", "Runtime", "Timeout", "RecursiveLoop")


def parts(template: SamTemplate) -> dict[str, Any]:
    """The parts of a deployment: functions with environment, mappings, policy and alarms; tables, queues, buckets."""
    file = TemplateFile(template.content)
    functions: dict[str, Any] = {}
    for each in template.functions:
        own = file.resources[each.name].properties
        (policy,) = file.resources[f"{each.name}Role"].properties["Policies"]
        functions[each.name] = {
            "group": each.group,
            **{name: own[name] for name in OF_FUNCTION if name in own},
            "Environment": plain(file, own["Environment"]["Variables"]),
            "Events": plain(file, own["Events"]),
            "Policy": plain(file, policy["PolicyDocument"]),
        }
    kept = {name: each for name, each in file.resources.items() if each.type in STORED}
    alarms = {name: each for name, each in file.resources.items() if each.type == "AWS::CloudWatch::Alarm"}
    return {
        "application": template.deployment.app.name,
        "functions": functions,
        "resources": {name: {"Type": each.type, **plain(file, each.properties)} for name, each in kept.items()},
        "alarms": {name: plain(file, each.properties) for name, each in alarms.items()},
        "notes": list(notes(template)),
    }


def plain(file: TemplateFile, value: Mapping[str, Any]) -> Any:
    """A value of a template as texts and numbers: of a parameter its default, or ``${NAME}`` without one."""
    # Of a condition, the last alternative is that of an option that nobody took.
    return _as_text(file.alternatives(value)[-1] if "SSESpecification" in value else file.first(value))


def _as_text(value: Any) -> Any:
    if isinstance(value, Unknown):
        return f"${{{value.parameter}}}" if value.parameter else value.text
    if isinstance(value, Mapping):
        return {name: _as_text(each) for name, each in value.items()}
    return [_as_text(each) for each in value] if isinstance(value, list) else value


def notes(template: SamTemplate) -> Iterator[str]:
    """What a person should know of filters, readers and parameters, a sentence each."""
    for function in template.functions:
        for table in function.subscribed:
            found = template.filter(function, table)
            what = f"{function.name} reads all records of table {table!r}"
            if found.widened_by:
                yield f"{what}: keys of {', '.join(found.widened_by)} begin with a field, and no filter can name them."
            elif not found.patterns:
                yield f"{what}: its {len(set(function.subscribed[table]))} keys are too many for a filter."
            elif not found.counts_removals:
                yield (
                    f"The stream of table {table!r} has no old images: {function.name} does not notice that somebody "
                    "removed a row that handlers add to."
                )
    yield from _notes_of_readers(template)
    if template.needs_search:
        names = ", ".join(each.name for each in template.searches if not each.only_searches)
        yield (
            f"{names} has a search beside other handlers: SearchEndpoint is asked for. A search in a group of its own, "
            'group="search", may be left out.'
        )


def _notes_of_readers(template: SamTemplate) -> Iterator[str]:
    readers: dict[str, list[str]] = {}
    for function in template.functions:
        for table in function.subscribed:
            readers.setdefault(table, []).append(function.name)
    for table, names in readers.items():
        existing = template.existing.get(table)
        if len(names) > READERS_MAX and not (existing and existing.on_kinesis):
            yield f"The stream of table {table!r} has {len(names)} readers, {', '.join(names)}: {TOO_MANY_READERS}."


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
