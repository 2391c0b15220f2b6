"""Points of a sweep: how one is composed, and runs in a process of its own."""
