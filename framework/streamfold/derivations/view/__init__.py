"""Views: rows that are sums of their source items' contributions."""
