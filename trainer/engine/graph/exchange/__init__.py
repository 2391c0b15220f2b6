"""What replicas send each other."""
