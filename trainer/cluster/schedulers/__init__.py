"""Schedulers: a file `<name>_scheduler.py` for each, which says how its processes know it."""
