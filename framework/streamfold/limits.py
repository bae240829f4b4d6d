"""Limits of a DynamoDB transaction, apart from the rooms that obey them: reading settings need not import the
planner.
"""

ACTIONS_MAX = 100
BYTES_MAX = 4 * 1024 * 1024
"""Actions and size of one transaction (API Reference, TransactWriteItems)."""
