"""Children that go with their parent."""
