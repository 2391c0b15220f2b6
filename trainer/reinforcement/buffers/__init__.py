"""Where the unrolls of actors wait to be trained on: a file a choice."""
