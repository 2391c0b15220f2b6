"""Rules across keys: a file a section of the configuration."""
