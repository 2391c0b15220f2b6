"""Strategies: which devices train, and how they communicate.

One file each; `conf/strategy/<name>.yaml` selects it. The parent process imports these modules too,
so TensorFlow is imported inside `create` alone.
"""
