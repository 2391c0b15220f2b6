"""Schedulers: a file for each, which says how a process recognizes that it has started it."""
