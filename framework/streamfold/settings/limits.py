"""Limits of the services: how much one transaction takes, and how long one call may take."""

ACTIONS_MAX = 100
BYTES_MAX = 4 * 1024 * 1024
"""Actions and size of one transaction (API Reference, TransactWriteItems)."""
STATEMENTS_MAX = 25
"""Statements of one call (API Reference, BatchExecuteStatement)."""
NAME_BYTES_MAX = 64 * 1024 - 1
"""Bytes of an attribute's name (Developer Guide, Constraints: at least one character, less than 64 KB)."""
KEYS_MAX = 100
"""Keys of one call (API Reference, BatchGetItem)."""

LANES_MAX = 32
"""Calls that one invocation makes side by side."""
READ_LANES_MAX = LANES_MAX * 5 // 4
"""Reads of state items that an invocation makes side by side, a quarter more, rounded down. With the default of 8 call
slots, the ledger items of 1,000 records are read in the time of one call. DynamoDB's client keeps a connection for
each.
"""

SECONDS_A_DAY = 24 * 60 * 60

CONNECT_SECONDS_MAX = 1
READ_SECONDS_MAX = 4
TRIES_MAX = 2
"""botocore's defaults are 60 seconds a try and ten tries (``legacy``). DynamoDB answers in milliseconds: a call that
takes seconds is better sent again, and the engine, which has the deadline, retries a throttled call.
"""
BACKOFF_SECONDS_MAX = 1
"""Between the two tries of mode ``standard`` (botocore, retries/standard.py: a second at most before the second)."""
CALL_SECONDS_MAX = TRIES_MAX * (CONNECT_SECONDS_MAX + READ_SECONDS_MAX) + BACKOFF_SECONDS_MAX
"""The longest that one call takes: 2 * (1 + 4) + 1 = 11 seconds."""
STOP_SECONDS = CALL_SECONDS_MAX + 1
"""A call that is begun with more time than this ends before the invocation does, with a second for its response."""
