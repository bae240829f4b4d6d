"""Long runs over many items: kept as items of the state, done in segments, held to a rate."""
