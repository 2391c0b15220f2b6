"""Strategies: which devices train, and how they agree. One file each, `conf/strategy/<name>.yaml` selects it.

A module here is imported by the parent process too, so TensorFlow is imported inside `start` alone.
"""
