"""One training step: gradients, their sum over the replicas, and the update."""
