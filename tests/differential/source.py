"""Renders a program as readable Python, which anybody can paste and run."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.differential.catalog import (
    CAST,
    FLATTEN,
    HELPERS,
    LAYER_HELPERS,
    LAYERS,
    LOSSES,
    METRICS,
    SCHEDULES,
    WIDE,
)
from tests.differential.program import BATCH, names
from tests.differential.steps import STEPS, source_of

SEED = 7
CLASSES = 3
WORDS = ["cat", "dog", "bird", "fish", "tree"]
SHAPES = {
    "vector": (4,), "scalar": (), "column": (1,), "sequence": (5, 3), "image": (6, 6, 2),
    "tokens": (5,), "text": (),
}  # fmt: skip
"""Shapes of one example of an input."""
WIDE_KINDS = {"sequence": ("sequence", "tokens", "text"), "image": ("image",)}
"""Inputs that an output of a shape can be made of."""


_SEQUENCE = """
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]


"""


_SHORTENED = """
def shortened(number, batch):
    def short(value):
        is_long = value.shape.rank > 1 and value.shape[1] == 5
        return value[:, : 5 - number % 3] if is_long else value

    return tf.nest.map_structure(short, batch)


"""


@dataclass(frozen=True)
class Node:
    """A layer: `name = source(inputs)`; a head has the name of its output."""

    name: str
    source: str
    inputs: tuple[str, ...]


@dataclass
class Graph:
    """The layers of a model in order, and the names of what it returns."""

    nodes: list[Node] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def add(self, name, source, *inputs):
        """Add a layer, if it is not None; return the name of its output."""
        if not source:
            return inputs[0]
        self.nodes.append(Node(name, source, inputs))
        return name


def channels(output):
    """Return the length of the last axis of an output, or 1."""
    if output.target in ("class", "one_hot"):
        return CLASSES
    return 2 if output.shape in ("vector", "sequence", "image") and output.target != "flag" else 1


def script(program, title, command=""):
    """Return a program as a script, with the command that trains it as a comment."""
    body = "\n\n\n".join(
        part.strip("\n")
        for part in (*_helpers(program), _data(program), _model_class(program), _make(program))
        if part
    )
    library = "tf_keras as keras" if program.library == "tf_keras" else "keras"
    text = f'"""{title}"""\n\nimport {library}\n'
    text += f"import numpy as np\nimport tensorflow as tf\n\n\n{body}\n"
    if command:
        text += "\n\n# " + command.replace("\n", "\n# ")
    return text + "\n"


def _helpers(program):
    used = [LAYER_HELPERS.get(name, "") for name in program.layers]
    used += [LOSSES[output.loss].helper for output in program.outputs]
    for output in program.outputs:
        used += [METRICS[name].helper for name in (*output.metrics, *output.weighted_metrics)]
    if program.optimizer.schedule == "own":
        used.append("Falling")
    if program.step and not STEPS[program.step].compiles:
        used = [name for name in used if name in (*LAYER_HELPERS.values(), "Falling")]
    is_cast = program.library == "keras"
    return [
        HELPERS[name].replace(CAST, "") if is_cast and name in LOSSES else HELPERS[name]
        for name in dict.fromkeys(used)
        if name
    ]


def _graph(program):
    graph = Graph()
    shapes = {output.shape for output in program.outputs}
    has_flat = bool(shapes - WIDE_KINDS.keys())
    wide = {}
    flats = []
    for name, item in zip(names("x", len(program.inputs)), program.inputs, strict=True):
        last = _encode(graph, name, item, program.data.lengths)
        for shape in shapes & WIDE_KINDS.keys():
            if item.kind in WIDE_KINDS[shape]:
                wide.setdefault(shape, last)
        if has_flat:
            flats.append(graph.add(f"flat_{name}", FLATTEN[item.kind].get(item.flat, ""), last))
    merged = flats[0] if flats else ""
    if len(flats) > 1:
        merged = graph.add("merged", "keras.layers.Concatenate()", *flats)
    for number, layer in enumerate(program.layers):
        if has_flat:
            merged = graph.add(f"layer{number}", LAYERS[layer], merged)
        else:
            for shape, last in list(wide.items()):
                wide[shape] = graph.add(f"layer{number}_{shape}", LAYERS[layer], last)
    for name, output in zip(names("y", len(program.outputs)), program.outputs, strict=True):
        last = wide.get(output.shape, merged)
        graph.returned.append(_head(graph, name, output, last))
    needed = set(graph.returned)
    for node in reversed(graph.nodes):
        needed |= set(node.inputs) if node.name in needed else set()
    graph.nodes = [node for node in graph.nodes if node.name in needed]
    return graph


def _encode(graph, name, item, lengths):
    last = name
    if item.kind == "text":
        length = "" if lengths else ", output_sequence_length=5"
        vectorize = f"keras.layers.TextVectorization(vocabulary={WORDS}{length})"
        last = graph.add(f"tokens_{name}", vectorize, last)
    if item.kind in ("text", "tokens"):
        masks = ", mask_zero=True" if item.masked else ""
        last = graph.add(f"embedded_{name}", f"keras.layers.Embedding(7, 3{masks})", last)
    elif item.masked and item.kind == "sequence":
        last = graph.add(f"masked_{name}", "keras.layers.Masking(0.0)", last)
    if item.kind in WIDE:
        last = graph.add(f"wide_{name}", WIDE[item.kind].get(item.wide, ""), last)
    return last


def _head(graph, name, output, last):
    activation = {"number": "", "flag": '"sigmoid"'}.get(output.target, '"softmax"')
    if output.logits:
        activation = ""
    kind = "Conv2D" if output.shape == "image" else "Dense"
    size = f"{channels(output)}, 1" if output.shape == "image" else f"{channels(output)}"
    options = f", activation={activation}" if activation else ""
    if output.shape == "scalar":
        last = graph.add(f"column_{name}", f"keras.layers.Dense(1{options})", last)
        return graph.add(name, f'keras.layers.Reshape((), name="{name}")', last)
    return graph.add(name, f'keras.layers.{kind}({size}{options}, name="{name}")', last)


def _call(node, function):
    arguments = ", ".join(node.inputs)
    return f"{function}([{arguments}])" if len(node.inputs) > 1 else f"{function}({arguments})"


def _nest(values, container):
    """Return the source of a value, or of several in a dict or a list."""
    if len(values) == 1:
        return next(iter(values.values()))
    if container == "list":
        return f"[{', '.join(values.values())}]"
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def _model_class(program):
    """Return the class of a model with methods of its own."""
    if program.form != "subclassed" and not program.step:
        return ""
    base = "Sequential" if program.form == "sequential" else "Model"
    lines = [f"class Own(keras.{base}):"]
    if program.form == "subclassed":
        graph = _graph(program)
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.{node.name} = {node.source}" for node in graph.nodes]
        lines += ["", "    def call(self, inputs, training=None):"]
        inputs = list(names("x", len(program.inputs)))
        keys = {
            name: f"inputs[{number if program.data.container == 'list' else repr(name)}]"
            for number, name in enumerate(inputs)
        }
        if len(inputs) == 1:
            keys = {"x0": "inputs"}
        lines += [f"        {name} = {source}" for name, source in keys.items()]
        lines += [
            f"        {node.name} = {_call(node, f'self.{node.name}')}" for node in graph.nodes
        ]
        returned = _nest({name: name for name in graph.returned}, program.data.container)
        lines += [f"        return {returned}"]
    text = "\n".join(lines) + "\n"
    if program.step:
        text += source_of(program.step, program.library)
    return text


def _make(program):
    """Return the function that makes the compiled model."""
    lines = ["def make_model():", f"    keras.utils.set_random_seed({SEED})"]
    own = "Own" if program.step else ""
    inputs = dict(zip(names("x", len(program.inputs)), program.inputs, strict=True))
    if program.form == "subclassed":
        lines += ["    model = Own()", *_trackers(program)]
        if program.built:
            lines += [f"    model(examples({BATCH}, 0)[0])"]
    else:
        made = {}
        for name, item in inputs.items():
            dtype = {"tokens": ', dtype="int32"', "text": ', dtype="string"'}.get(item.kind, "")
            shape = list(SHAPES[item.kind])
            if program.data.lengths and shape:
                shape[0] = None
            made[name] = f'keras.Input({shape}, name="{name}"{dtype})'
        graph = _graph(program)
        if program.form == "sequential":
            first = [made["x0"]] if program.built else []
            lines += [f"    model = {own or 'keras.Sequential'}(", "        ["]
            lines += [f"            {source}," for source in first]
            lines += [f"            {node.source}," for node in graph.nodes]
            lines += ["        ]", "    )"]
        else:
            lines += [f"    {name} = {source}" for name, source in made.items()]
            lines += [f"    {node.name} = {_call(node, node.source)}" for node in graph.nodes]
            container = program.data.container
            given = _nest({name: name for name in made}, container)
            returned = _nest({name: name for name in graph.returned}, container)
            lines += [f"    model = {own or 'keras.Model'}({given}, {returned})"]
    if program.form != "subclassed":
        lines += _trackers(program)
    lines += [*_compile(program), "    return model"]
    return "\n".join(lines)


def _trackers(program):
    """Return what makes the metrics of a model that is compiled without a loss."""
    is_own = program.step and not STEPS[program.step].compiles
    return ["    model.build_trackers()"] if is_own else []


def _compile(program):
    step = STEPS.get(program.step)
    if step is not None and not step.compiles:
        arguments = [f"optimizer={_optimizer(program)}"]
        if program.step == "two_optimizers":
            arguments.append("second=keras.optimizers.SGD(0.02)")
        return [f"    model.compile({', '.join(arguments)})"]
    arguments = {"optimizer": _optimizer(program)}
    outputs = dict(zip(names("y", len(program.outputs)), program.outputs, strict=True))
    container = program.data.container
    losses = {name: _loss(item) for name, item in outputs.items()}
    is_same = len(set(losses.values())) == 1 and container == "list"
    arguments["loss"] = losses["y0"] if is_same else _nest(losses, container)
    if any(item.loss_weight is not None for item in outputs.values()):
        weights = {name: str(item.loss_weight or 1.0) for name, item in outputs.items()}
        arguments["loss_weights"] = _nest(weights, container)
    for key in ("metrics", "weighted_metrics"):
        chosen = {
            name: f"[{', '.join(METRICS[metric].source for metric in getattr(item, key))}]"
            for name, item in outputs.items()
        }
        if any(value != "[]" for value in chosen.values()):
            arguments[key] = _nest(chosen, container)
    lines = [f"        {key}={value}," for key, value in arguments.items()]
    return ["    model.compile(", *lines, "    )"]


def _loss(output):
    options = f"reduction={output.reduction}" if output.reduction else ""
    source = LOSSES[output.loss].source
    source = source.replace("{logits}", str(output.logits)).replace("{options}", options)
    return source.replace(", )", ")")


def _optimizer(program):
    item = program.optimizer
    rate = SCHEDULES[item.schedule] if item.schedule else str(item.rate)
    options = [f"{name}={value}" for name, value in item.options]
    if ("use_ema", "True") in item.options:
        options.append("ema_momentum=0.5")
    return f"keras.optimizers.{item.name}({', '.join([rate, *options])})"


def _data(program):
    """Return the functions that make the examples."""
    container = program.data.container
    inputs = dict(zip(names("x", len(program.inputs)), program.inputs, strict=True))
    outputs = dict(zip(names("y", len(program.outputs)), program.outputs, strict=True))
    lines = ["def examples(count, seed):", "    rng = np.random.default_rng(seed)"]
    lengths = program.data.lengths
    lines += [f"    {name} = {_feature(item, lengths)}" for name, item in inputs.items()]
    for name, item in inputs.items():
        if item.masked and item.kind == "sequence":
            lines.append(f"    {name}[:, 3:] = 0.0")
    lines += [f"    {name} = {_label(item)}" for name, item in outputs.items()]
    if program.data.special == "empty_class":
        lines += [f"    {name} = {name} * 0" for name in list(outputs)[:1]]
    if program.data.special == "nan":
        lines += [f"    {name}[3] = np.nan" for name in list(outputs)[:1]]
    parts = [
        _nest({name: name for name in inputs}, container),
        _nest({name: name for name in outputs}, container),
    ]
    if program.data.weights == "example":
        lines.append('    weight = rng.uniform(0.2, 2.0, count).astype("float32")')
        parts.append("weight")
    elif program.data.weights == "element":
        shape = _shape(*_positions(program.outputs[0]))
        lines.append(f'    weight = rng.uniform(0.2, 2.0, {shape}).astype("float32")')
        parts.append("weight")
    elif program.data.weights == "output":
        weights = {name: 'rng.uniform(0.2, 2.0, count).astype("float32")' for name in outputs}
        lines.append(f"    weight = {_nest(weights, container)}")
        parts.append("weight")
    lines.append(f"    return {', '.join(parts)}")
    functions = {"data": (program.data.train, 0), "held_out": (program.data.test, 1)}
    texts = ["\n".join(lines)]
    for name, (count, seed) in functions.items():
        texts.append(_source(program, name, f"examples({count}, {seed})"))
    return "\n\n\n".join(texts)


def _source(program, name, examples):
    if program.data.source == "arrays":
        return f"def {name}():\n    return {examples}"
    # A list would be one tensor.
    sliced = f"tf.data.Dataset.from_tensor_slices(packed({examples}))"
    batched = f"{sliced}.batch({BATCH})"
    packed = ""
    wide = any(item.shape in WIDE_KINDS for item in program.outputs)
    # What Keras predicts has one length in all batches.
    if program.data.lengths and (name == "data" or not wide):
        batched = f"{batched}.enumerate().map(shortened)"
    if name == "data":
        packed = (
            "def packed(value):\n"
            "    return tuple(map(packed, value)) if isinstance(value, (list, tuple)) else value"
            "\n\n\n"
        )
        packed += _SHORTENED if program.data.lengths else ""
    if program.data.source == "dataset":
        return f"{packed}def {name}():\n    return {batched}"
    if program.data.source == "examples":
        return f"{packed}def {name}():\n    return {sliced}"
    batches = f"{batched}.as_numpy_iterator()"
    if program.data.source == "generator":
        return f"{packed}def {name}():\n    yield from {batches}"
    base = "PyDataset" if program.library == "keras" else "Sequence"
    sequence = f"class Batches(keras.utils.{base}):{_SEQUENCE}" if name == "data" else ""
    return f"{packed}{sequence}def {name}():\n    return Batches(list({batches}))"


def _feature(item, lengths):
    shape = _shape(*SHAPES[item.kind])
    if item.kind == "tokens":
        return f'rng.integers(0, 7, {shape}).astype("int32")'
    if item.kind == "text":
        words = f"rng.choice({WORDS}, {'rng.integers(1, 6)' if lengths else 4})"
        return f"np.array([' '.join({words}) for _ in range(count)], object)"
    return f'rng.normal(size={shape}).astype("float32")'


def _shape(*sizes):
    """Return the source of the shape of the examples of a batch."""
    return f"[{', '.join(['count', *map(str, sizes)])}]"


def _positions(output):
    """Return the shape of a label without its last axis."""
    return {"sequence": (5,), "image": (6, 6)}.get(output.shape, ())


def _label(output):
    positions = _positions(output)
    last = channels(output)
    if output.target == "class":
        full = _shape(*positions) if output.squeezed else _shape(*positions, 1)
        return f'rng.integers(0, {CLASSES}, {full}).astype("{output.dtype}")'
    if output.target == "one_hot":
        classes = f"rng.integers(0, {CLASSES}, {_shape(*positions)})"
        return f'np.eye({CLASSES})[{classes}].astype("{output.dtype}")'
    has_last = output.shape != "scalar" and not (output.squeezed and last == 1)
    full = _shape(*positions, last) if has_last else _shape(*positions)
    if output.target == "flag":
        return f'rng.integers(0, 2, {full}).astype("{output.dtype}")'
    if output.dtype.startswith("float"):
        return f'rng.normal(size={full}).astype("{output.dtype}")'
    return f'rng.integers(0, 3, {full}).astype("{output.dtype}")'
