"""Training under fire: processes are killed again and again; `python -m benchmarks.fire`."""
