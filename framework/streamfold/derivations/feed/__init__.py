"""Posts fanned out to the feeds of those who follow their authors."""
