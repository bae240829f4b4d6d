"""Removed items, kept as compressed files."""
