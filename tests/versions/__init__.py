"""Histories in which several versions of an application work on one state and table at once: see README.md."""
