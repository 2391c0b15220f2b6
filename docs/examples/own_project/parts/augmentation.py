"""Your own augmentation, after those of Steadfast: half of the images are inverted."""

import tensorflow as tf

from trainer.datasets.operations.augment import Augmentation


class Inverted(Augmentation):
    def __init__(self):
        super().__init__()
        self.num_draws = 1

    def apply(self, images, draws, **options):
        return tf.where(draws[:, :1, None, None] < 0.5, 1.0 - images, images)
