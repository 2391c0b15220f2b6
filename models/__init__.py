"""Models: one file each. A model is a function of (input_shape, num_classes, *, its options)."""
