"""Models of Keras 3: of the digits' images, [8, 8, 1]."""

import keras
import tensorflow as tf
from keras import layers


def conv_net(input_shape, num_classes, *, dropout=0.3, synchronized=False):
    """Convolution, batch normalization, dropout, L2 and a constraint."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(4, 3, kernel_regularizer=keras.regularizers.L2(1e-2)),
            layers.BatchNormalization(synchronized=synchronized, momentum=0.9),
            layers.Activation("tanh"),
            layers.Flatten(),
            layers.Dropout(dropout),
            layers.Dense(num_classes, kernel_constraint=keras.constraints.MaxNorm(0.5)),
        ]
    )


class Noisy(keras.layers.Layer):
    """A dense layer with draws of its own, and a loss on what it returns."""

    def __init__(self, units):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)
        self.dense = layers.Dense(units, activation="tanh")

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs, training=False):
        """Add normal noise, of another kind of draw than most layers use."""
        outputs = self.dense(inputs)
        self.add_loss(1e-2 * keras.ops.mean(outputs**2))
        if training:
            outputs += 0.1 * keras.random.normal(outputs.shape, seed=self.seeds)
        return outputs


class Subclassed(keras.Model):
    """A subclassed model that calls one layer twice."""

    def __init__(self, num_classes):
        super().__init__()
        self.first = layers.Dense(8)
        self.noisy = Noisy(8)
        self.last = layers.Dense(num_classes)

    def call(self, inputs, training=False):
        hidden = self.first(keras.ops.reshape(inputs, (-1, 64)))
        for _ in range(2):
            hidden = self.noisy(hidden, training=training)
        return self.last(hidden)


def subclassed(input_shape, num_classes):
    model = Subclassed(num_classes)
    model(keras.ops.zeros((1, *input_shape)))
    return model


class PerPosition(keras.Model):
    """A subclassed model of logits for each token or pixel."""

    def __init__(self, num_classes, vocabulary=None):
        super().__init__()
        self.table = None
        if vocabulary is not None:
            self.table = self.add_weight(shape=(vocabulary, 6), initializer="uniform", name="table")
        self.last = layers.Dense(num_classes)

    def call(self, inputs):
        """Return the logits; tokens must be integers."""
        return self.last(inputs if self.table is None else keras.ops.take(self.table, inputs, 0))


def per_token(input_shape, num_classes):
    """Build `PerPosition` for tokens."""
    model = PerPosition(num_classes, num_classes)
    model(keras.ops.zeros((1, *input_shape), "int32"))
    return model


def per_pixel(input_shape, num_classes):
    """Build `PerPosition` for images, of another size than the dataset's."""
    model = PerPosition(num_classes)
    model(keras.ops.zeros((1, 4, 4, input_shape[-1])))
    return model


def lora(input_shape, num_classes):
    """Train a low-rank update of a frozen kernel."""
    inputs = keras.Input(input_shape)
    dense = layers.Dense(16, activation="tanh")
    hidden = dense(layers.Flatten()(inputs))
    model = keras.Model(inputs, layers.Dense(num_classes)(hidden))
    dense.enable_lora(2)
    return model


class Function(layers.Layer):
    """Normalizes in a `tf.function`, which has traced the model before it is trained."""

    def __init__(self):
        super().__init__()
        self.normalization = layers.BatchNormalization()

    @tf.function
    def call(self, inputs, training=False):
        """Return the normalized inputs, or their half if they are large."""
        outputs = self.normalization(inputs, training=training)
        if tf.reduce_max(tf.abs(outputs)) > 2.0:
            outputs *= 0.5
        return outputs


def everything(input_shape, num_classes, *, synchronized=False):
    """What a layer can bring, in one model.

    Convolution with L2, batch normalization, a layer with a loss that is called twice, attention,
    LSTM, dropout, a low-rank update, and a `tf.function`.
    """
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(4, 3, kernel_regularizer=keras.regularizers.L2(1e-2))(inputs)
    normalization = layers.BatchNormalization(momentum=0.9, synchronized=synchronized)
    x = layers.Activation("tanh")(normalization(x))
    rows = layers.Reshape((x.shape[1], x.shape[2] * x.shape[3]))(x)
    noisy = Noisy(rows.shape[-1])
    for _ in range(2):
        rows = noisy(rows)
    rows = rows + layers.MultiHeadAttention(2, 4, dropout=0.2)(rows, rows)
    hidden = layers.LSTM(6, dropout=0.2, recurrent_dropout=0.2)(Function()(rows))
    dense = layers.Dense(8, activation="tanh")
    hidden = layers.Dropout(0.2)(dense(hidden))
    model = keras.Model(inputs, layers.Dense(num_classes)(hidden))
    dense.enable_lora(2)
    return model


class Summing(layers.Layer):
    """Sums up what it is trained on, so that each sum has the same bits in any order.

    Its loss is linear in its kernel, so a gradient depends on the batch alone; the digits' images
    have sixteenths as values.
    """

    def build(self, input_shape):
        """Add the kernel, and the count of examples."""
        self.kernel = self.add_weight(
            shape=(input_shape[-1], 10), initializer="zeros", name="kernel"
        )
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="seen", dtype="float32"
        )

    def call(self, inputs, training=False):
        """Return the sums, through which no gradient passes."""
        sums = keras.ops.matmul(inputs, self.kernel)
        self.add_loss(keras.ops.mean(keras.ops.matmul(sums, keras.ops.arange(1.0, 11.0)[:, None])))
        if training:
            self.seen.assign(self.seen + keras.ops.cast(keras.ops.shape(inputs)[0], "float32"))
        return keras.ops.stop_gradient(sums)


def summing(input_shape, num_classes):
    """Sum up images, and count them."""
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, Summing(name="sums")(layers.Flatten()(inputs)))


def float8(input_shape, num_classes):
    """Compute in 8 bits."""
    model = deferred(input_shape, num_classes)
    model.build((None, *input_shape))
    model.quantize("float8")
    return model


def spectral(input_shape, num_classes):
    """Assign to a kernel in the forward pass."""
    inputs = keras.Input(input_shape)
    dense = layers.SpectralNormalization(layers.Dense(num_classes))
    return keras.Model(inputs, dense(layers.Flatten()(inputs)))


class Raw(keras.layers.Layer):
    """A layer with a variable that Keras 3 does not know: in a dict, or in a function alone."""

    def __init__(self, held_by):
        super().__init__()
        self.held_by = held_by

    def build(self, input_shape):
        scale = tf.Variable(1.0, name="own_scale")
        if self.held_by == "dict":
            self._scale = {"a": scale}
        self._read = lambda: scale

    def call(self, inputs):
        return inputs * self._read()


def raw_variable(input_shape, num_classes, *, held_by):
    """Have a tf.Variable in a layer where Keras does not look."""
    inputs = keras.Input(input_shape)
    scaled = Raw(held_by)(layers.Flatten()(inputs))
    return keras.Model(inputs, layers.Dense(num_classes)(scaled))


class Around(keras.Model):
    """A subclassed model, whose layers are called with no symbolic tensors."""

    def __init__(self, *chain):
        super().__init__()
        self.chain = chain

    def call(self, inputs):
        hidden = keras.ops.reshape(inputs, (-1, 64))
        for layer in self.chain:
            hidden = layer(hidden)
        return hidden


def recomputing(input_shape, num_classes):
    """Rematerialize."""
    with keras.RematScope(mode="full"):
        model = Around(layers.Dense(num_classes))
    model(keras.ops.zeros((1, *input_shape)))
    return model


def unbuilt(input_shape, num_classes):
    """Return a model that has no variables yet."""
    return Subclassed(num_classes)


def deferred(input_shape, num_classes):
    """Return a sequential model without an input, which the trainer builds."""
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes)])


def named(input_shape, num_classes):
    """Layers with names: `body`, `norm` and `head`."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(6, name="body"),
            layers.BatchNormalization(momentum=0.9, name="norm"),
            layers.Activation("tanh"),
            layers.Dense(num_classes, name="head"),
        ]
    )
