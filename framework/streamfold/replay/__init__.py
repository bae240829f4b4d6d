"""Recorded events on a local store, without AWS."""
