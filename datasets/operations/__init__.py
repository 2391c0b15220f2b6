"""Augmentation: random changes of a batch of images in training."""
