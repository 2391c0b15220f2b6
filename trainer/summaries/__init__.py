"""What is shown during a run: writers, figures, profiles."""
