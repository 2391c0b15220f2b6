"""Callbacks, called after each evaluation; `conf/callbacks/<name>.yaml` selects one."""
