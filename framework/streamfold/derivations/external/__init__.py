"""Calls of functions with side effects outside of the store."""
