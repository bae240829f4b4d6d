"""``template.yaml`` as plain values: ``!GetAtt X.Arn`` is ``{"Fn::GetAtt": ["X", "Arn"]}``, as in CloudFormation."""

from pathlib import Path

import yaml

from tests.tools.overlay import overlaid, overlay_text

ROOT = Path(__file__).parents[2]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Knows the short forms of CloudFormation's functions."""


def _function(loader, suffix, node):
    if isinstance(node, yaml.SequenceNode):
        return {f"Fn::{suffix}": loader.construct_sequence(node, deep=True)}
    value = loader.construct_scalar(node)
    if suffix == "GetAtt":
        return {"Fn::GetAtt": value.split(".", 1)}
    return {suffix: value} if suffix in ("Ref", "Condition") else {f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _function)


def load_template(path=ROOT / "template.yaml"):
    """The template of this project, or of a build of it."""
    return yaml.load(path.read_text("utf-8"), _Loader)


def load_overlaid(page):
    """The template with what the text of a page puts on top of it."""
    return overlaid(load_template(), yaml.load(overlay_text(page), _Loader))


def kinesis_template():
    """The template with what docs/sources.md puts on top of it."""
    return load_overlaid((ROOT / "docs/sources.md").read_text("utf-8"))


def properties(template, name):
    return template["Resources"][name]["Properties"]


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
