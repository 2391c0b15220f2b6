"""Actors and learners: environments, unrolls, buffers, and the tasks that learn from them."""
