"""The task of Keras programs: a model by its own loss, metrics and steps, of either Keras."""
