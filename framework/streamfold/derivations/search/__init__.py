"""Documents of a search index that are never older than their items."""
