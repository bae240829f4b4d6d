"""The stores that carry out plans, behind one small protocol.

``EmbeddedEngine`` is SQLite, ``MemoryEngine`` dictionaries, ``DynamoEngine`` boto3. One contract test runs over all of
them (``tests/engines/test_engines.py``). Each is imported when it is asked for: ``from streamfold.engines import
EmbeddedEngine`` needs no boto3, and ``import streamfold.engines`` no sqlite3.

    engine = EmbeddedEngine(app, path="shop.db")
    app.process(event, engine=engine)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.embedded import EmbeddedEngine
    from streamfold.engines.memory import MemoryEngine
    from streamfold.engines.protocol import Engine

__all__ = ["DynamoEngine", "EmbeddedEngine", "Engine", "MemoryEngine"]

PUBLIC = {"DynamoEngine": "dynamodb", "EmbeddedEngine": "embedded", "Engine": "protocol", "MemoryEngine": "memory"}
"""The modules of public names: engines import dependencies that few users of this package need, SQLite and boto3."""


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
