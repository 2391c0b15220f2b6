"""The parent process's side of one run: start, watch, restart."""
