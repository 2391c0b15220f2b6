"""Caches of decoded examples and of tokens."""
