"""After keras.io's "Knowledge Distillation": a small student learns from its teacher's outputs.

Changed for Steadfast: the models are made by functions, and `fit` (twice) became
`conf/experiment/distillation_teacher.yaml` and `distillation.yaml`, which starts with the weights
of the first (`init_from`). `Distiller` stays.
"""

import keras
from data import digits as data  # noqa: F401  (named in the recipes)
from keras import layers, ops


class Distiller(keras.Model):
    """Trains a student on the labels and on the predictions of its teacher."""

    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(
        self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True, **options
    ):
        teacher_logits = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_logits / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def network(width, name):
    """Return a convolutional network that ends in logits."""
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(width, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(2 * width, 3, strides=2, padding="same"),
            layers.Flatten(),
            layers.Dense(10),
        ],
        name=name,
    )


def teacher_model():
    """Return the compiled teacher."""
    teacher = network(64, "teacher")
    teacher.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return teacher


def model():
    """Return the compiled distiller, whose teacher is yet to get its weights."""
    teacher = network(64, "teacher")
    teacher.trainable = False
    distiller = Distiller(student=network(4, "student"), teacher=teacher)
    distiller.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        distillation_loss_fn=keras.losses.KLDivergence(),
        alpha=0.1,
        temperature=5,
    )
    return distiller
