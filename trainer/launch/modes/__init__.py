"""Modes that train several times and compare, or plan: verify, plan."""
