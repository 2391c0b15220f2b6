"""Runs in an object store: objects, the lease on a run, and its files."""
