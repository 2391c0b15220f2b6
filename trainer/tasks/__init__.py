"""Tasks: models, optimizers and the training step. A file each, named by `conf/task/*.yaml`."""
