"""Handlers that are called once at a moment of an item: ``on(..., at=)`` and ``publish(..., at=)``."""
