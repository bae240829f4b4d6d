"""Handlers that are called once at a moment of an item, which ``at=`` gives."""
