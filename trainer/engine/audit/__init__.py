"""The audit: whether all processes and replicas still hold, and compute, the same bits."""
