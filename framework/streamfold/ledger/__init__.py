"""The contributions of an item, as the state table keeps them: the guard of every kind that contributes."""
