"""What a worker process may be told to do: a file a mode."""
