"""Processes of a run as the parent sees them: fresh, forked, or its own."""
