"""Datasets: one file each. A dataset is a function that returns splits with random access."""
