"""One batch: routed, ordered, planned, committed and finished."""
