"""mode=predict: a table of what a model predicts."""
