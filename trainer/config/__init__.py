"""From configuration keys to a checked Experiment."""
