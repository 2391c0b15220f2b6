"""Tasks: what is trained and how. One file each, `conf/task/<name>.yaml` selects it."""
