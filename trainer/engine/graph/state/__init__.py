"""Variables: which there are, their names, and which are trained."""
