"""What all datasets share: arrays, paths, and division into splits."""
