"""Tasks that learn from environments: a file each, named by `conf/task/*.yaml`."""
