"""Writes the dashboards of the code into template.yaml: python -m tests.tools.dashboards."""

import re
from pathlib import Path

import handlers
from streamfold.deploy.dashboards import dashboards
from streamfold.deploy.functions import STATE_RESOURCE, Deployment
from tests.helpers.template import ROOT, load_template

TABLES = {name: {"Ref": name} for name in ("Table", STATE_RESOURCE)}
RESOURCE = r"^  {}:\n(?:    .*\n)+"
INDENT = 8


def of_template(template):
    """The dashboards that the code makes for a template of this project."""
    return dashboards(Deployment(handlers.app, handlers).functions, template["Resources"], TABLES)


def as_yaml(name, resource):
    body = resource["Properties"]["DashboardBody"]["Fn::Sub"]
    lines = "".join(f"{' ' * INDENT}{line}\n" for line in body.splitlines())
    return (
        f"  {name}:\n    Type: {resource['Type']}\n    Condition: {resource['Condition']}\n"
        f"    Properties:\n      DashboardBody: !Sub |\n{lines}"
    )


def write(file: Path = ROOT / "template.yaml") -> None:
    text = file.read_text("utf-8")
    for name, resource in of_template(load_template(file)).items():
        made = as_yaml(name, resource)
        text = re.sub(RESOURCE.format(name), lambda _, made=made: made, text, flags=re.MULTILINE)
    file.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
