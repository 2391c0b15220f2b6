"""What can be seen while a run goes on: writers, figures, profiles."""
