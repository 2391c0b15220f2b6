"""Training loops of the user's own: the replicator, its session and its streams."""
