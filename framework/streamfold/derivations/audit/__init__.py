"""Histories: one row for every change of an item."""
