"""A worker process: its entry, how it builds the experiment, and its modes."""
