"""Views: rows that add up what their source items contribute."""
