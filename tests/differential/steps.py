"""Methods of a model that a program overrides, as source text: `train_step` and the like.

Each works for either Keras; `{metrics}` is what the two do differently.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Methods that a model overrides."""

    source: str
    targets: tuple[str, ...] = ()  # the labels that they take; empty: all
    compiles: bool = True  # the compiled loss is used


_UNPACK = """
        x, y, *rest = data
        weight = rest[0] if rest else None
"""

_UPDATE = """
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
"""

_COMPILED_METRICS = {
    "keras": """
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, outputs, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}
""",
    "tf_keras": """
        self.compiled_metrics.update_state(y, outputs, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}
""",
}

_TRACKED = """
    @property
    def metrics(self):
        return [self.tracker, self.error]

    def build_trackers(self):
        self.tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    def report(self, loss, y, outputs):
        self.tracker.update_state(loss)
        self.error.update_state(y, outputs)
        return {"loss": self.tracker.result(), "mae": self.error.result()}
"""

_TRACKED_TEST = """
    def test_step(self, data):
        x, y, *rest = data
        outputs = self(x, training=False)
        return self.report(tf.reduce_mean(tf.square(y - outputs)), y, outputs)
"""


def _own(loss, update=_UPDATE, more=""):
    return f"""{_TRACKED}{more}
    def train_step(self, data):{_UNPACK}
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(x, training=True)
            loss = {loss}
{update}
        return self.report(loss, y, outputs)
{_TRACKED_TEST}"""


_NUMBERS = ("number",)

STEPS = {
    "guide": Step(f"""
    def train_step(self, data):{_UNPACK}
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight)
{_UPDATE}{{metrics}}"""),
    "test": Step(f"""
    def test_step(self, data):{_UNPACK}
        outputs = self(x, training=False)
        loss = self.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight)
{{metrics}}"""),
    "compute_loss": Step(
        """
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        return loss + 0.1 * tf.reduce_mean(tf.square(y_pred))
""",
        ("number", "flag", "class", "one_hot"),
    ),
    "mean": Step(_own("tf.reduce_mean(tf.square(y - outputs))"), _NUMBERS, False),
    "vector": Step(_own("tf.square(y - outputs)"), _NUMBERS, False),
    "sum": Step(_own("tf.reduce_sum(tf.square(y - outputs)) / 4.0"), _NUMBERS, False),
    "root": Step(_own("tf.sqrt(tf.reduce_mean(tf.square(y - outputs)))"), _NUMBERS, False),
    "twice": Step(
        _own(
            "tf.reduce_mean(tf.square(y - outputs))",
            _UPDATE
            + """
        with tf.GradientTape() as tape:
            second = 0.1 * tf.reduce_mean(tf.abs(y - self(x, training=True)))
        gradients = tape.gradient(second, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
""",
        ),
        _NUMBERS,
        False,
    ),
    "two_optimizers": Step(
        _own(
            "tf.reduce_mean(tf.square(y - outputs))",
            """
        first, second = self.trainable_variables[:1], self.trainable_variables[1:]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, first), first))
        self.second.apply_gradients(zip(tape.gradient(loss, second), second))
""",
            """
    def compile(self, optimizer, second):
        super().compile(optimizer=optimizer)
        self.second = second
""",
        ),
        _NUMBERS,
        False,
    ),
}


def source_of(step, library):
    """Return the methods of a model, indented as those of a class."""
    return STEPS[step].source.replace("{metrics}", _COMPILED_METRICS[library]).rstrip() + "\n"
