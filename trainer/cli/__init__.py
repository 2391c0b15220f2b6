"""What a command line says: overrides, help, errors and the small commands."""
