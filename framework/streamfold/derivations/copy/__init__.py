"""Copies of items in another table."""
