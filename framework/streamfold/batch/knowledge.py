"""What a process knows of a state: kept in its run, so that declarations remember nothing."""

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from streamfold.engines import Engine
from streamfold.ledger.forms import Forms, FormsByHandler
from streamfold.records.envelope import Seen
from streamfold.routes.application import Application
from streamfold.run import Run


@dataclass(slots=True)
class StoredForms:
    """The state's item of a target: forms by handler and name, as of a revision."""

    forms: FormsByHandler = field(default_factory=dict)
    revision: int = 0


@dataclass(slots=True)
class Knowledge:
    """What a process knows a state to hold of an application."""

    forms: Forms = field(default_factory=Forms)  # of attributes, those that the process itself saw among them
    targets: dict[str, StoredForms] = field(default_factory=dict)  # as the state has them
    noted: int = 0  # how many attributes the process itself had seen when it last noted them
    sources: dict[str, Seen] = field(default_factory=dict)  # tables as far as they were seen
    revision: int | None = None  # of the manifest; None before it was read


def knowledge(run: Run, application: Application, engine: Engine) -> Knowledge:
    """What the process knows of an application's state on an engine."""
    by_application: WeakKeyDictionary[Application, Knowledge] = run.learned.setdefault(engine, WeakKeyDictionary())
    return by_application.setdefault(application, Knowledge())
