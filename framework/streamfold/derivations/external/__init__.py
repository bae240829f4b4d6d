"""Calls of what has side effects outside of the store."""
