"""The closed set of guarded writes that plans are made of and engines carry out."""
