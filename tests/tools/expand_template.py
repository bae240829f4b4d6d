"""Print a SAM template as CloudFormation will see it, so that cfn-lint can check what SAM makes of it.

  expand_template.py template.yaml [page.md] [NAME=VALUE ...]

Offline. What a page puts on top of the template is then part of it. The values are the template's parameters; the
others keep their defaults. Run it with the Python that has aws-sam-translator (make template). cfn-lint alone no longer
expands a template, and so misses most mistakes in one.
"""

import json
import sys
from pathlib import Path

from overlay import overlaid, overlay_text
from samtranslator.parser.parser import Parser
from samtranslator.public.exceptions import InvalidDocumentException
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

ANY_ARCHIVE = "s3://bucket/key"
LOCAL_PATHS = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}


def expand(template, parameters):
    """Give the CloudFormation template. Raises ValueError with every mistake that SAM, or a filter, shows."""
    mistakes = broken_filters(template)
    if mistakes:
        raise ValueError("\n".join(mistakes))
    for resource in template["Resources"].values():
        if path := LOCAL_PATHS.get(resource["Type"]):
            resource.setdefault("Properties", {})[path] = ANY_ARCHIVE  # the translator takes only what was uploaded
    try:
        return Translator({}, Parser()).translate(template, parameters)
    except InvalidDocumentException as error:
        raise ValueError("\n".join(cause.message for cause in error.causes)) from error


def broken_filters(template):
    """Name the event filters whose pattern is no JSON object: neither SAM nor cfn-lint reads them."""
    mistakes = []
    for name, resource in template["Resources"].items():
        for event, source in resource.get("Properties", {}).get("Events", {}).items():
            filters = source.get("Properties", {}).get("FilterCriteria", {}).get("Filters", [])
            for number, entry in enumerate(filters):
                try:
                    good = isinstance(json.loads(entry["Pattern"]), dict)
                except ValueError:
                    good = False
                if not good:
                    mistakes.append(f"{name}.{event}: the pattern of filter {number} is no JSON object")
    return mistakes


def main(path, *settings):
    template = yaml_parse(Path(path).read_text())
    for page in [setting for setting in settings if setting.endswith(".md")]:
        template = overlaid(template, yaml_parse(overlay_text(Path(page).read_text("utf-8"))))
    try:
        expanded = expand(template, dict(setting.split("=", 1) for setting in settings if "=" in setting))
    except ValueError as error:
        return f"{path}: {error}"
    print(json.dumps(expanded, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
