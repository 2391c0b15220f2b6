"""Search methods: which points a sweep tries."""
