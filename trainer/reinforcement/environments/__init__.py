"""Environments of this project; any other of gymnasium can be chosen by its `_target_` too."""
