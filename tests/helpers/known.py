"""What the processes of a test know of states and keep from batch to batch, by engine and application."""

from weakref import WeakKeyDictionary

from streamfold.runtime import Knowledge


class Known:
    def __init__(self):
        self._engines = WeakKeyDictionary()

    def of(self, engine, application):
        by_application = self._engines.setdefault(engine, WeakKeyDictionary())
        return by_application.setdefault(application, Knowledge())
