"""Sweeps: many runs from one command, which can be killed and repeated."""
