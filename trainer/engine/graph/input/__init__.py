"""The order of examples, and how batches reach the replicas."""
