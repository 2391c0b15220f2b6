"""What programs are made of: losses, metrics, layers, optimizers and schedules, as source text.

`keras` in a source is the Keras that the program imports. `HELPERS` are the definitions that a
source uses, written at the top of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

BOTH = ("tf_keras", "keras")
TARGETS = ("number", "flag", "class", "one_hot")
SHAPES = ("scalar", "column", "vector", "sequence", "image")
ALIKE = ("number", "flag", "one_hot")
"""Labels that have the shape of the outputs."""
FLAT = ("column", "vector")

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "uint8", "int8", "int16")
DTYPES = {
    "number": (*FLOATS, *INTEGERS),
    "flag": (*FLOATS, *INTEGERS, "bool"),
    "class": (*INTEGERS, "float32"),
    "one_hot": (*FLOATS, *INTEGERS, "bool"),
}
"""The NumPy types of labels by their kind."""


@dataclass(frozen=True)
class Choice:
    """Something that a program may be compiled with, and the labels and outputs that it takes."""

    source: str  # `{options}` stands where options are added, `{logits}` for True or False
    targets: tuple[str, ...]
    shapes: tuple[str, ...] = SHAPES
    libraries: tuple[str, ...] = BOTH
    helper: str = ""  # the definition that it uses, a key of `HELPERS`


def _own(name, *targets, shapes=SHAPES):
    return Choice(name, targets, shapes, helper=name)


def _loss(source, *targets, shapes=SHAPES):
    return Choice(f"keras.losses.{source}", targets, shapes)


LOSSES = {
    # By name.
    "mse": Choice('"mse"', ALIKE),
    "mae": Choice('"mae"', ("number",)),
    "log_cosh": Choice('"log_cosh"', ("number",)),
    "huber": Choice('"huber"', ("number",), libraries=("keras",)),
    "cosine": Choice('"cosine_similarity"', ("one_hot",)),
    "binary": Choice('"binary_crossentropy"', ("flag", "one_hot")),
    "hinge": Choice('"squared_hinge"', ("flag",)),
    "sparse": Choice('"sparse_categorical_crossentropy"', ("class",)),
    "categorical": Choice('"categorical_crossentropy"', ("one_hot",)),
    "kl": Choice('"kl_divergence"', ("one_hot",)),
    # By class.
    "MSE": _loss("MeanSquaredError({options})", *ALIKE),
    "MAE": _loss("MeanAbsoluteError({options})", "number"),
    "Huber": _loss("Huber({options})", "number"),
    "Binary": _loss("BinaryCrossentropy(from_logits={logits}, {options})", "flag", "one_hot"),
    "Focal": _loss("BinaryFocalCrossentropy(from_logits={logits}, {options})", "flag"),
    "Sparse": _loss("SparseCategoricalCrossentropy(from_logits={logits}, {options})", "class"),
    "Ignoring": _loss(
        "SparseCategoricalCrossentropy(from_logits={logits}, ignore_class=0, {options})", "class"
    ),
    "Categorical": _loss(
        "CategoricalCrossentropy(from_logits={logits}, label_smoothing=0.1, {options})", "one_hot"
    ),
    # By function and by class of one's own.
    "per_element": _own("per_element", *ALIKE),
    "per_example": _own("per_example", *ALIKE, shapes=SHAPES[1:]),
    "one_number": _own("one_number", *ALIKE),
    "summed": _own("summed", *ALIKE),
    "masked": _own("masked", *ALIKE),
    "dice": _own("dice", "flag", "one_hot"),
    "masked_classes": _own("masked_classes", "class"),
    "OwnLoss": Choice("OwnLoss({options})", ALIKE, helper="OwnLoss"),
}
TAKES_PROBABILITIES = {
    "binary", "sparse", "categorical", "kl", "dice", "mse", "hinge", "cosine",
}  # fmt: skip
"""Losses by name that have no option for logits."""

REDUCTIONS = {
    "tf_keras": ('"auto"', '"sum"', '"sum_over_batch_size"', '"none"'),
    "keras": (
        '"sum"', '"sum_over_batch_size"', '"mean"', '"mean_with_sample_weight"', '"none"', "None",
    ),
}  # fmt: skip


def _metric(source, *targets, shapes=SHAPES):
    return Choice(f"keras.metrics.{source}", targets, shapes)


METRICS = {
    "mae": Choice('"mae"', ALIKE),
    "mse": Choice('"mse"', ALIKE),
    "accuracy": Choice('"accuracy"', ("flag", "class", "one_hot")),
    "acc": Choice('"acc"', ("flag", "class", "one_hot")),
    "binary_crossentropy": Choice('"binary_crossentropy"', ("flag",)),
    "sparse_accuracy": Choice('"sparse_categorical_accuracy"', ("class",)),
    "sparse_crossentropy": Choice('"sparse_categorical_crossentropy"', ("class",)),
    "RMSE": _metric("RootMeanSquaredError()", *ALIKE),
    "R2": _metric("R2Score()", "number", shapes=FLAT),
    "Cosine": _metric("CosineSimilarity()", "one_hot"),
    "LogCosh": _metric("LogCoshError()", "number"),
    "BinaryAccuracy": _metric("BinaryAccuracy(threshold=0.4)", "flag"),
    "AUC": _metric("AUC(num_thresholds=20)", "flag"),
    "PR": _metric('AUC(num_thresholds=20, curve="PR", name="prc")', "flag"),
    "Precision": _metric("Precision()", "flag"),
    "Recall": _metric("Recall()", "flag"),
    "TruePositives": _metric("TruePositives()", "flag"),
    "AtRecall": _metric("PrecisionAtRecall(0.5, num_thresholds=20)", "flag"),
    "F1": _metric('F1Score(threshold=0.5, average="micro")', "flag", shapes=("column",)),
    "BinaryIoU": _metric("BinaryIoU(target_class_ids=[0, 1], threshold=0.5)", "flag"),
    "SparseTopK": _metric("SparseTopKCategoricalAccuracy(k=2)", "class"),
    "MeanIoU": _metric("MeanIoU(num_classes=3, sparse_y_pred=False)", "class"),
    "TopK": _metric("TopKCategoricalAccuracy(k=2)", "one_hot"),
    "MacroF1": _metric('F1Score(average="macro")', "one_hot", shapes=FLAT),
    "OneHotMeanIoU": _metric("OneHotMeanIoU(num_classes=3)", "one_hot"),
    "ClassPrecision": _metric("Precision(class_id=1)", "one_hot", shapes=FLAT),
    "own_error": _own("own_error", *ALIKE),
    "own_number": _own("own_number", *ALIKE),
    "own_rmse": _own("own_rmse", *ALIKE),
    "LargestError": Choice("LargestError()", ALIKE, helper="LargestError"),
}

CAST = "    y_true = tf.cast(y_true, y_pred.dtype)\n"
"""What losses of one's own need in tf_keras alone: Keras 3 casts the labels for them."""

HELPERS = {
    "per_element": """
def per_element(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.square(y_true - y_pred)
""",
    "per_example": """
def per_example(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=list(range(1, len(y_pred.shape))))
""",
    "one_number": """
def one_number(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.reduce_mean(tf.square(y_true - y_pred))
""",
    "summed": """
def summed(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.reduce_sum(tf.square(y_true - y_pred)) / 8.0
""",
    "masked": """
def masked(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    mask = tf.cast(y_true > 0.2, y_pred.dtype)
    return tf.reduce_sum(mask * tf.square(y_true - y_pred)) / (tf.reduce_sum(mask) + 0.01)
""",
    "dice": """
def dice(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    common = tf.reduce_sum(y_true * y_pred)
    return 1.0 - (2.0 * common + 1.0) / (tf.reduce_sum(y_true) + tf.reduce_sum(y_pred) + 1.0)
""",
    "masked_classes": """
def masked_classes(y_true, y_pred):
    losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
    mask = tf.reshape(tf.cast(y_true != 0, losses.dtype), tf.shape(losses))
    return tf.reduce_sum(losses * mask) / (tf.reduce_sum(mask) + 0.01)
""",
    "OwnLoss": """
class OwnLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred) ** 1.5
""",
    "own_error": """
def own_error(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.abs(y_true - y_pred)
""",
    "own_number": """
def own_number(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.reduce_max(tf.abs(y_true - y_pred))
""",
    "own_rmse": """
def own_rmse(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.sqrt(tf.reduce_mean(tf.square(y_true - y_pred)))
""",
    "LargestError": """
class LargestError(keras.metrics.Metric):
    def __init__(self, name="largest_error"):
        super().__init__(name=name)
        self.largest = self.add_weight(name="largest", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = tf.reduce_max(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred))
        self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), error))

    def result(self):
        return tf.convert_to_tensor(self.largest)
""",
    "Penalty": """
class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
        return inputs
""",
    "Summing": """
class Summing(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.01 * tf.reduce_sum(tf.square(inputs)))
        return inputs
""",
    "Scale": """
class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale
""",
    "Counter": """
class Counter(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(
            name="count", shape=(), initializer="zeros", trainable=False
        )

    def call(self, inputs, training=None):
        if training:
            self.count.assign(tf.convert_to_tensor(self.count) + 1.0)
        return inputs * (1.0 + 0.1 * tf.convert_to_tensor(self.count))
""",
    "Falling": """
class Falling(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1.0 + tf.cast(step, tf.float32))

    def get_config(self):
        return {}
""",
}

LAYERS = {
    "dense": 'keras.layers.Dense(5, activation="tanh")',
    "gelu": 'keras.layers.Dense(5, activation="gelu")',
    "relu": 'keras.layers.Dense(5, activation="relu")',
    "regularized": "keras.layers.Dense(5, 'tanh', kernel_regularizer=keras.regularizers.L2(0.02))",
    "activity": 'keras.layers.Dense(4, "tanh", activity_regularizer=keras.regularizers.L2(0.02))',
    "constrained": "keras.layers.Dense(5, kernel_constraint=keras.constraints.MaxNorm(0.6))",
    "frozen": 'keras.layers.Dense(5, activation="tanh", trainable=False)',
    "batch_norm": "keras.layers.BatchNormalization(momentum=0.6)",
    "layer_norm": "keras.layers.LayerNormalization()",
    "unit_norm": "keras.layers.UnitNormalization()",
    "dropout": "keras.layers.Dropout(0.4)",
    "noise": "keras.layers.GaussianNoise(0.2)",
    "penalty": "Penalty()",
    "summing": "Summing()",
    "scale": "Scale()",
    "counter": "Counter()",
}
LAYER_HELPERS = {
    "penalty": "Penalty", "summing": "Summing", "scale": "Scale", "counter": "Counter",
}  # fmt: skip
NOISY = {"dropout", "noise"}
"""Layers that draw random numbers: other ones in `fit`."""
BY_PART = {"batch_norm", "summing", "activity", *NOISY}
"""Layers whose results depend on which examples are in one part of a batch."""

WIDE = {
    "sequence": {
        "dense": 'keras.layers.Dense(4, activation="tanh")',
        "lstm": "keras.layers.LSTM(4, return_sequences=True)",
        "gru": "keras.layers.GRU(4, return_sequences=True)",
        "conv": 'keras.layers.Conv1D(4, 3, padding="same", activation="tanh")',
    },
    "image": {
        "conv": 'keras.layers.Conv2D(3, 3, padding="same", activation="tanh")',
        "depthwise": 'keras.layers.DepthwiseConv2D(3, padding="same", activation="tanh")',
        "separable": 'keras.layers.SeparableConv2D(3, 3, padding="same", activation="gelu")',
    },
}
WIDE = {**WIDE, "tokens": WIDE["sequence"], "text": WIDE["sequence"]}
FLATTEN = {
    "vector": {"dense": 'keras.layers.Dense(4, activation="tanh")', "same": ""},
    "scalar": {"reshape": "keras.layers.Reshape((1,))"},
    "column": {"same": ""},
    "sequence": {
        "pool": "keras.layers.GlobalAveragePooling1D()",
        "flatten": "keras.layers.Flatten()",
        "lstm": "keras.layers.LSTM(4)",
        "gru": "keras.layers.GRU(4)",
        "rnn": "keras.layers.SimpleRNN(4)",
        "bidirectional": "keras.layers.Bidirectional(keras.layers.LSTM(3))",
    },
    "image": {
        "pool": "keras.layers.GlobalAveragePooling2D()",
        "flatten": "keras.layers.Flatten()",
    },
}
FLATTEN = {**FLATTEN, "tokens": FLATTEN["sequence"], "text": FLATTEN["sequence"]}
RECURRENT = {"lstm", "gru", "rnn", "bidirectional"}
MASKING = {*RECURRENT, "pool", "dense"}
"""Layers that take a mask."""

_ADAPTIVE = (("epsilon", "1e-3"), ("epsilon", "1e-5"))
OPTIMIZERS = {
    "SGD": (("momentum", "0.9"), ("nesterov", "True")),
    "Adam": (*_ADAPTIVE, ("beta_1", "0.8"), ("amsgrad", "True")),
    "AdamW": (*_ADAPTIVE, ("weight_decay", "0.05")),
    "RMSprop": (*_ADAPTIVE, ("rho", "0.8"), ("momentum", "0.5"), ("centered", "True")),
    "Adagrad": (*_ADAPTIVE, ("initial_accumulator_value", "0.2")),
    "Adadelta": (*_ADAPTIVE, ("rho", "0.9")),
    "Adamax": (*_ADAPTIVE, ("beta_2", "0.99")),
    "Nadam": (*_ADAPTIVE, ("beta_1", "0.8")),
    "Ftrl": (("l1_regularization_strength", "0.01"), ("l2_regularization_strength", "0.01")),
    "Lion": (("beta_1", "0.8"), ("beta_2", "0.95")),
    "Adafactor": (("relative_step", "False"), ("beta_2_decay", "-0.7")),
    "Lamb": (*_ADAPTIVE, ("beta_1", "0.8")),
    "Muon": (("momentum", "0.9"),),
    "ScheduleFreeAdamW": (("beta_1", "0.8"),),
    "legacy.Adam": (("epsilon", "1e-3"), ("amsgrad", "True"), ("decay", "0.1")),
    "legacy.SGD": (("momentum", "0.9"), ("nesterov", "True"), ("decay", "0.1")),
    "legacy.RMSprop": (("epsilon", "1e-3"), ("centered", "True"), ("momentum", "0.5")),
}
ONLY_IN = {
    "Lamb": "keras", "Muon": "keras", "ScheduleFreeAdamW": "keras",
    "legacy.Adam": "tf_keras", "legacy.SGD": "tf_keras", "legacy.RMSprop": "tf_keras",
}  # fmt: skip
COMMON_OPTIONS = (
    ("clipnorm", "0.1"), ("clipvalue", "0.05"), ("global_clipnorm", "0.2"),
    ("weight_decay", "0.1"), ("use_ema", "True"), ("ema_overwrite_frequency", "2"),
    ("gradient_accumulation_steps", "2"),
)  # fmt: skip
"""Of every optimizer that is not a legacy one; the last one is of Keras 3 alone."""

BY_KEY = {
    "SGD": "sgd", "Adam": "adam", "RMSprop": "rmsprop", "Adagrad": "adagrad", "Nadam": "nadam",
    "Lion": "lion",
}  # fmt: skip
"""Optimizers with a key that has the same formula."""

SCHEDULES = {
    "exponential": "keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)",
    "cosine": "keras.optimizers.schedules.CosineDecay(0.1, 6)",
    "warmup": "keras.optimizers.schedules.CosineDecay(0.0, 6, warmup_target=0.1, warmup_steps=2)",
    "piecewise": "keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [0.1, 0.05, 0.02])",
    "polynomial": "keras.optimizers.schedules.PolynomialDecay(0.1, 5)",
    "inverse": "keras.optimizers.schedules.InverseTimeDecay(0.1, 2, 0.5)",
    "own": "Falling()",
}
