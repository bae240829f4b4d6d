"""What happens on every change: effects behind a claim, and external calls."""
