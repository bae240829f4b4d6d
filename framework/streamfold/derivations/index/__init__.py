"""Index items: rows of one source item each, or of the first that claims them."""
