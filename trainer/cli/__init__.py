"""The command line: overrides, help, errors and the small commands."""
