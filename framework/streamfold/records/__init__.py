"""Records of Lambda, a pipe or a file, read as changes of items, and the values in items."""
