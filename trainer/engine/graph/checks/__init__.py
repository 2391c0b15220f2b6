"""Judges of a traced graph: what in it would be lost, or differ between layouts."""
