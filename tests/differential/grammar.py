"""Draws programs: each is a pure function of a seed and its number."""

import random
from dataclasses import replace

from tests.differential.catalog import (
    BOTH,
    BY_KEY,
    COMMON_OPTIONS,
    DTYPES,
    FLATTEN,
    LAYERS,
    LOSSES,
    MASKING,
    METRICS,
    ONLY_IN,
    OPTIMIZERS,
    RECURRENT,
    REDUCTIONS,
    SCHEDULES,
    TAKES_PROBABILITIES,
    TARGETS,
    WIDE,
)
from tests.differential.program import BATCH, Data, Input, Optimizer, Output, Program
from tests.differential.source import WIDE_KINDS
from tests.differential.steps import STEPS

KINDS = ("vector", "vector", "scalar", "column", "sequence", "image", "tokens", "text")
RATES = {
    "SGD": 0.1, "Adadelta": 1.0, "Lion": 0.01, "Adafactor": 0.02, "legacy.SGD": 0.1, "Ftrl": 0.1,
}  # fmt: skip


def draw(seed, number):
    """Return a program of all those of a seed."""
    # A text is hashed alike by every Python.
    return _Drawing(random.Random(f"{seed}/{number}")).program()


class _Drawing:
    """Draws a program, part by part."""

    def __init__(self, rng):
        self._rng = rng

    def _chance(self, share):
        return self._rng.random() < share

    def _one(self, values):
        return self._rng.choice(values)

    def program(self):
        library = self._one(BOTH)
        inputs = tuple(self._input() for _ in range(1 if self._chance(0.75) else 2))
        step = self._one(sorted(STEPS)) if self._chance(0.25) else ""
        count = 1 if step or self._chance(0.7) else 2
        outputs = tuple(self._output(library, inputs, step) for _ in range(count))
        if count > 1 and self._chance(0.5):
            outputs = tuple(replace(item, loss_weight=self._one([0.5, 2.0])) for item in outputs)
        form = self._one(["functional", "functional", "subclassed", "sequential"])
        if form == "sequential" and (len(inputs) > 1 or count > 1):
            form = "functional"
        names = list(LAYERS)
        layers = tuple(self._one(names) for _ in range(self._one([0, 0, 1, 1, 2])))
        program = Program(
            library=library,
            form=form,
            inputs=inputs,
            outputs=outputs,
            layers=layers,
            step=step,
            built=form == "functional" or self._chance(0.7),
            optimizer=self._optimizer(library),
            data=self._data(outputs, step),
            steps=self._one([2, 3, 4, 5]),
            epochs=self._one([1, 1, 1, 2]),
        )
        # Drawn last, so that everything else of a program is what it was before this was drawn.
        return allowed(replace(program, data=replace(program.data, lengths=self._chance(0.5))))

    def _input(self):
        kind = self._one(KINDS)
        item = Input(
            kind,
            wide=self._layer(WIDE[kind]) if kind in WIDE and self._chance(0.5) else "",
            flat=self._layer(FLATTEN[kind]),
        )
        takes_mask = kind in ("sequence", "tokens", "text") and {item.wide or "dense", item.flat}
        if takes_mask and takes_mask <= MASKING:
            item = replace(item, masked=self._chance(0.4))
        return item

    def _layer(self, layers):
        """Return a layer; a recurrent one, which takes long to trace, in one of four cases."""
        fast = [name for name in layers if name not in RECURRENT]
        return self._one(list(layers) if self._chance(0.25) else fast)

    def _output(self, library, inputs, step):
        kinds = {item.kind for item in inputs}
        shapes = ["column", "vector", "scalar"]
        shapes += [shape for shape, wide in WIDE_KINDS.items() if kinds & set(wide)] * 2
        shape = self._one(shapes)
        targets = list(TARGETS)
        if shape in ("scalar", "column"):
            targets = ["number", "flag"]
        if step and STEPS[step].targets:
            targets = [name for name in targets if name in STEPS[step].targets]
        target = self._one(targets)
        item = Output(shape, target, squeezed=self._chance(0.5), logits=self._chance(0.4))
        losses = [
            name
            for name, choice in LOSSES.items()
            if target in choice.targets and shape in choice.shapes and library in choice.libraries
            if not (item.logits and name in TAKES_PROBABILITIES)
        ]
        loss = self._one(losses)
        if target == "number":
            item = replace(item, logits=False)
        dtypes = DTYPES[target]
        dtype = (
            self._one(dtypes) if self._chance(0.3) else "int64" if target == "class" else "float32"
        )
        item = replace(item, loss=loss, dtype=dtype)
        if "{options}" in LOSSES[loss].source and self._chance(0.4):
            item = replace(item, reduction=self._one(REDUCTIONS[library]))
        return replace(
            item,
            metrics=self._metrics(library, item, 0.6),
            weighted_metrics=self._metrics(library, item, 0.15),
        )

    def _metrics(self, library, output, share):
        if not self._chance(share):
            return ()
        names = [
            name
            for name, choice in METRICS.items()
            if output.target in choice.targets
            and output.shape in choice.shapes
            and library in choice.libraries
        ]
        return tuple(self._rng.sample(names, min(len(names), self._one([1, 1, 2, 3]))))

    def _optimizer(self, library):
        names = [name for name in OPTIMIZERS if ONLY_IN.get(name, library) == library]
        name = "SGD" if self._chance(0.3) else self._one(names)
        options = {}
        if self._chance(0.5):
            options |= dict([self._one(OPTIMIZERS[name])])
        elif any(key == "epsilon" for key, _ in OPTIMIZERS[name]):
            options["epsilon"] = "1e-3"
        if "legacy" not in name and self._chance(0.3):
            options |= dict([self._one(COMMON_OPTIONS[: None if library == "keras" else -1])])
        if "ema_overwrite_frequency" in options:
            options["use_ema"] = "True"
        if "nesterov" in options:
            options["momentum"] = "0.9"
        schedule = self._one(list(SCHEDULES)) if self._chance(0.2) else ""
        plain = {"clipvalue", "global_clipnorm"} | {key for key, _ in OPTIMIZERS[name]}
        plain -= {"centered", "amsgrad"}
        by_key = name in BY_KEY and not schedule and options.keys() <= plain and self._chance(0.2)
        # A key's epsilon is added to the root, wherever Keras' optimizer adds it: RMSprop's is
        # within it.
        by_key = by_key and "epsilon" not in options and name != "RMSprop"
        return Optimizer(name, RATES.get(name, 0.05), tuple(options.items()), schedule, by_key)

    def _data(self, outputs, step):
        sources = ["arrays"] * 5 + ["dataset", "dataset", "examples", "generator", "sequence"]
        weights = "none"
        if self._chance(0.25):
            weights = self._one(["example", "example", "element", "output"])
        is_class = outputs[0].target in ("class", "flag", "one_hot")
        special = "none"
        if self._chance(0.08):
            special = self._one(["empty_class", "nan"])
        return Data(
            source=self._one(sources),
            train=self._rng.randint(12, 40),
            test=self._rng.randint(5, 20),
            weights=weights,
            class_weights=len(outputs) == 1 and is_class and self._chance(0.2),
            container=self._one(["dict", "dict", "list"]),
            special=special,
        )


def allowed(program):
    """Return a program without what makes no sense together; a fixed point of itself."""
    outputs = list(program.outputs)
    data = program.data
    step = STEPS.get(program.step)
    if step is not None and not step.compiles:
        outputs = [
            replace(
                item,
                loss="mse",
                reduction="",
                metrics=(),
                weighted_metrics=(),
                squeezed=False,
                loss_weight=None,
                dtype="float32",
            )
            for item in outputs
        ]
        data = replace(data, weights="none", class_weights=False)
    if program.step == "two_optimizers":  # one key would replace both
        program = replace(program, optimizer=replace(program.optimizer, by_key=False))
    # Keras squeezes labels of one number alone.
    outputs = [
        replace(item, squeezed=item.squeezed and (item.shape == "column" or item.target == "class"))
        for item in outputs
    ]
    wide = [item for item in outputs if item.shape in WIDE_KINDS]
    if any(item.shape == "scalar" for item in outputs):
        data = replace(data, weights="none", class_weights=False)
    if data.class_weights:
        data = replace(data, weights="none")
    if data.weights == "element" and (len(outputs) > 1 or not wide):
        data = replace(data, weights="example")
    if data.weights == "output" and len(outputs) == 1:
        data = replace(data, weights="example")
    if data.special == "nan" and (
        outputs[0].target != "number" or not outputs[0].dtype.startswith("float")
    ):
        data = replace(data, special="none")
    if data.special == "empty_class" and outputs[0].target not in ("class", "flag"):
        data = replace(data, special="none")
    if len(program.inputs) == 1 and len(outputs) == 1:
        data = replace(data, container="dict")
    if data.source not in ("dataset", "generator") or not takes_lengths(program.inputs, wide):
        data = replace(data, lengths=False)
    if data.lengths:  # batches that are taken apart would have to be padded
        data = replace(data, train=-(-data.train // BATCH) * BATCH)
    return replace(program, outputs=tuple(outputs), data=data)


def takes_lengths(inputs, wide):
    """Return whether inputs, and labels with positions, may be shorter in some batches."""
    kinds = {item.kind for item in inputs}
    if "text" in kinds and (wide or len(inputs) > 1):  # its length is that of the longest text
        return False
    return kinds <= {"sequence", "tokens", "text"} and "flatten" not in {i.flat for i in inputs}
