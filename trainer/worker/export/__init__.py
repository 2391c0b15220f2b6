"""mode=export: a checkpoint as a SavedModel, with its model card."""
