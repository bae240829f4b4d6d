"""Attributes that are derived onto items of the application itself."""
