"""The device side of training: what TensorFlow compiles."""
