"""What a command line says: overrides, help, completion, errors and the small commands."""
