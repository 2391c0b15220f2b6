"""The report: one HTML page about runs, which needs no network. No TensorFlow."""
