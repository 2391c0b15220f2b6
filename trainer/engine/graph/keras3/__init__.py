"""Models of Keras 3 in a step."""
