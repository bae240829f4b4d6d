"""Failed records, processed later."""
