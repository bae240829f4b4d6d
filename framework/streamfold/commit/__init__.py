"""Units behind guards become transactions, and the rows that they leave to be recomputed. Knows no kind."""
