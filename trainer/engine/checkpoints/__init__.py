"""Checkpoints: written, restored, and rolled back to."""
