"""Models: one file each. A model is a function of (input_shape, num_classes, *, its options).

It raises a ValueError of features that it does not take, and of an option that is wrong.
"""
