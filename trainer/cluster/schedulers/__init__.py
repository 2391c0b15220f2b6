"""Schedulers: a file `<name>_scheduler.py` for each, with how its processes detect it."""
