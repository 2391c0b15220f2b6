"""Compiled loops: many steps or batches in one graph call."""
