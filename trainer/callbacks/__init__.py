"""Callbacks: told of a run's events. One file each, `conf/callbacks/<name>.yaml` selects it."""
