"""Effects of every change, each behind a claim."""
