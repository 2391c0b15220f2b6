"""Datasets: one file each. A dataset is a function of its options that returns splits with random access."""
