"""The kinds of derivation, a room for each."""
