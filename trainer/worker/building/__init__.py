"""From a configuration to an engine and all its parts."""
