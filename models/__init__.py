"""Models: one file each. A model is a function of (input_shape, num_classes, *, its options).

It takes features, [B, *input_shape] float32, tokens as int32, and its outputs are float32. Features
that it cannot take, and a wrong option, are a ValueError.
"""
