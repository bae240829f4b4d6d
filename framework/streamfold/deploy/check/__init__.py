"""The check of a template against what the routes of an application ask for."""

from collections.abc import Sequence
from pathlib import Path

from streamfold.app import App
from streamfold.deploy.check.alarms import check_alarms
from streamfold.deploy.check.functions import check_functions, check_roles
from streamfold.deploy.check.mappings import check_mappings
from streamfold.deploy.check.policies import check_policies
from streamfold.deploy.check.review import Review, TemplateFinding
from streamfold.deploy.check.stores import check_stores
from streamfold.deploy.functions import RUNTIME, Deployment
from streamfold.deploy.rules import WRONG
from streamfold.deploy.template_file import TemplateFile


def check_template(
    app: App, module: str, template: TemplateFile, *, runtime: str = RUNTIME, builds: Path | None = None
) -> Sequence[TemplateFinding]:
    """The differences between a template and what the routes of an application ask for, the wrong ones first.

    ``module``: the one that the application lies in, as ``handlers``; handlers of functions are looked for in it.
    ``builds``: the folder of built functions, whose byte code is looked at.
    """
    review = Review(template, Deployment(app, module), module, runtime, builds)
    for check in (check_functions, check_mappings, check_stores, check_roles, check_policies, check_alarms):
        check(review)
    return sorted(dict.fromkeys(review.findings), key=lambda each: each.level != WRONG)
