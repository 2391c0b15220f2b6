"""Evaluation and prediction of a whole split."""
