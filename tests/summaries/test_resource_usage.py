"""Memory of the process."""
