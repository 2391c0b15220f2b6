"""Steps that are handed out to workers, as with parameter servers."""
