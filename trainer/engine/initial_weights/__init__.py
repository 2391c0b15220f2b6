"""Weights that a training starts from: of another run, or of a file."""
