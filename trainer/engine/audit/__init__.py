"""The audit: whether all processes and replicas still hold the same bits."""
