"""Key templates and tables: the keys of items."""
