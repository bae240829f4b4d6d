"""Key templates and tables: what an item is called."""
