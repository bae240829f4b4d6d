"""What an item contributed, as the state table keeps it: the guard of every kind that contributes."""
