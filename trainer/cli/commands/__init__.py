"""Commands in addition to training: each a module with a function `run(arguments) -> exit code`.

The function raises a ConfigError for arguments that are wrong or name nothing that exists.
"""
