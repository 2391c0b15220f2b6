"""Options of a `_target_`: read from its signature, and checked."""
