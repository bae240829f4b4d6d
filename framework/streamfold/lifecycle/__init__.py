"""What leads a whole state to its items: backfill, verify, repair and rebuild, beside the live stream."""
