"""Posts fanned out to the feeds of their authors' followers."""
