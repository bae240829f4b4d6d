"""``template.yaml`` as plain values: ``!GetAtt X.Arn`` is ``{"Fn::GetAtt": ["X", "Arn"]}``, as in CloudFormation."""

from pathlib import Path

import yaml

from streamfold.settings import TABLE_PREFIX, environment_name
from tests.tools.overlay import overlaid, overlay_text

ROOT = Path(__file__).parents[2]


class _Loader(yaml.SafeLoader):
    """Knows the short forms of CloudFormation's functions."""


def _function(loader, suffix, node):
    if isinstance(node, yaml.SequenceNode):
        return {f"Fn::{suffix}": loader.construct_sequence(node, deep=True)}
    value = loader.construct_scalar(node)
    if suffix == "GetAtt":
        return {"Fn::GetAtt": value.split(".", 1)}
    return {"Ref": value} if suffix == "Ref" else {f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _function)


def load_template(path=ROOT / "template.yaml"):
    """The template of this project, or of a build of it."""
    return yaml.load(path.read_text("utf-8"), _Loader)


def kinesis_template():
    """The template with what docs/sources.md puts on top of it."""
    page = (ROOT / "docs/sources.md").read_text("utf-8")
    return overlaid(load_template(), yaml.load(overlay_text(page), _Loader))


def properties(template, name):
    return template["Resources"][name]["Properties"]


def time_to_live_differences(template, app):
    """Where a table expires by another attribute than the application sets; one that declares none sets none."""
    variables = properties(template, "Projector")["Environment"]["Variables"]
    differences = []
    for name, table in app.tables.items():
        resource = variables[TABLE_PREFIX + environment_name(name)]["Ref"]
        specification = properties(template, resource).get("TimeToLiveSpecification", {})
        attribute = specification.get("AttributeName") if specification.get("Enabled") else None
        if table.ttl not in (None, attribute):
            differences.append(f"table {name!r} declares ttl={table.ttl!r}, its resource {resource} has {attribute!r}")
    return differences


def create_table(client, template, resource, name):
    """Creates the table of a template's resource under this name, with its keys and its stream."""
    declared = properties(template, resource)
    stream = declared.get("StreamSpecification")
    client.create_table(
        TableName=name,
        BillingMode=declared["BillingMode"],
        KeySchema=declared["KeySchema"],
        AttributeDefinitions=declared["AttributeDefinitions"],
        **({"StreamSpecification": {"StreamEnabled": True, **stream}} if stream else {}),
    )
