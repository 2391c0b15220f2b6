"""`fit`: trains a model of a script or notebook as the command does."""
