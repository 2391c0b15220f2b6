"""Starts the processes of a run, watches them, and restarts what fails."""
