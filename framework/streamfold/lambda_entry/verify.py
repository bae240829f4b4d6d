"""The entry of a schedule: a sample of the items is compared with the state, and nothing is written."""

import os
from random import Random
from typing import Any

from streamfold.batch.process import check_settings, undeclared_names
from streamfold.engines.deadline import time_left
from streamfold.engines.dynamodb import DynamoEngine
from streamfold.engines.dynamodb_client import make_client
from streamfold.errors import public
from streamfold.lambda_entry import garbage, in_public, keep_quiet
from streamfold.lambda_entry.lines import log
from streamfold.lambda_entry.observing import measuring, start_log
from streamfold.lifecycle.verify import AskedSample, verify_sample
from streamfold.routes.application import Application
from streamfold.runtime import Runtime
from streamfold.settings import Settings


def handle_verify(app: Application, event: Any, context: Any, client: Any = None) -> dict[str, int]:
    """Processes one scheduled comparison of items with the state; returns its counts, logs and measures them."""
    try:
        return _verified(app, event, context, Settings.from_environment(os.environ), client)
    except Exception as error:  # noqa: BLE001 - Lambda logs the text of whatever is raised
        stopped = in_public(error)
    raise stopped


def _verified(app: Application, event: Any, context: Any, settings: Settings, client: Any) -> dict[str, int]:
    keep_quiet()
    start_log(app.name, settings)
    check_settings(app, settings)
    for text in undeclared_names(app, settings):
        _warn(text)
    tables = {name: (table, settings.real_name(name) or name) for name, table in app.tables.items()}
    engine = DynamoEngine(client or make_client(), tables, settings.state_table or f"{app.name}-state")
    runtime = Runtime(app, engine, settings, warn=_warn, context=context, seconds_left=time_left(context))
    engine.deadline = runtime
    garbage.started()
    found = verify_sample(runtime, AskedSample.of(event), Random())  # noqa: S311 - a sample
    log.info("sample verified", extra=dict(found.counts))
    for text, by_handler in (("parts of items differ", found.different), ("items fail", found.failed)):
        for handler, count in by_handler.items():
            log.error(text, extra={"handler": handler, "count": count})
    measuring(app.name, settings)(found.counts)
    return dict(found.counts)


def _warn(text: str) -> None:
    log.warning(public(text))
