"""One of everything that can be your own: a file each, named by its dotted path in `conf/`."""
