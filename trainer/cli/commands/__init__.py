"""Commands besides training: each a module with a function `run(arguments) -> exit code`."""
