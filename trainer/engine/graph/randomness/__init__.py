"""Random numbers that depend on the seed and the step, never on the layout."""
