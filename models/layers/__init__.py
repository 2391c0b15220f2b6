"""Layers and blocks that several models share."""
