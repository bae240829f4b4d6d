"""A page's template on top of another: what an application changes in ``template.yaml`` for another source."""

import re

BLOCK = re.compile(r"^```yaml\n(Resources:\n.*?)^```$", re.MULTILINE | re.DOTALL)


def overlay_text(page):
    """The one block of a page that begins with ``Resources:``."""
    (text,) = BLOCK.findall(page)
    return text


def overlaid(template, overlay):
    """The template with the resources, properties and named policies of the overlay in place of its own."""
    resources = dict(template["Resources"])
    for name, resource in overlay["Resources"].items():
        known = resources.get(name, {})
        own, more = known.get("Properties", {}), resource.get("Properties", {})
        properties = {**own, **more}
        if "Policies" in own and "Policies" in more:
            properties["Policies"] = _by_name(own["Policies"], more["Policies"])
        resources[name] = {**known, **resource, "Properties": properties}
    return {**template, "Resources": resources}


def _by_name(policies, more):
    return list({policy["PolicyName"]: policy for policy in [*policies, *more]}.values())
