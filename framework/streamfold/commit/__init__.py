"""Units with guards become transactions, and their rows are recomputed. Knows no kind."""
