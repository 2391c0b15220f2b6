"""Training with processes killed at random: `python -m benchmarks.fire`."""
