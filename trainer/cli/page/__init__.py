"""The page of runs: live while they train, or one file that needs no network. No TensorFlow."""
