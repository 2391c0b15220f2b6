"""Sweeps: many points, each a run of its own, from one command that may be killed and repeated. No TensorFlow."""
