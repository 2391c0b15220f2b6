"""How training scales over processes: `python -m benchmarks.scaling`."""
