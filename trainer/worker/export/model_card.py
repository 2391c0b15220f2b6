"""MODEL_CARD.md of an export: model, data, metrics, inputs and outputs. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.files import read_json
from trainer.protocols import Dataset, LabelKind, label_kind_of, optional
from trainer.runs import identity, normalization, provenance
from trainer.runs.checkpoint_marker import read_marker

_SECTIONS = (
    "model",
    "dataset",
    "task",
    "optimizer",
    "schedule",
    "batch",
    "precision",
    "seed",
    "train",
)
_MAX_CLASS_NAMES = 20
Input: TypeAlias = tuple[list[int | None], str]
"""Shape and dtype of one input of a served function, without the axis of the batch."""

_FEATURES_RULE = "as the dataset hands them to the model (scaled and normalised)"
_LAST_OUTPUT: Mapping[LabelKind, str] = {
    "class": "the most probable class",
    "number": "in the unit of the targets",
    "multilabel": "1 for each label that an example is predicted to have",
}
"""What the last of the outputs means, or its numbers."""


def text(
    experiment: Experiment,
    run_dir: Path,
    step: int,
    dataset: Dataset,
    signatures: Mapping[str, Mapping[str, str]],
    *,
    parameters: Mapping[str, int],
    model_inputs: Mapping[str, Input],
) -> str:
    """Return the card, in Markdown.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory.
        step: the checkpoint's step.
        dataset: the data.
        signatures: name of each served function -> shape and type of its outputs, by name.
        parameters: number of parameters of the exported model, by its name in the task.
        model_inputs: name -> shape and dtype of one example's `features`, or of each of them, or
            of the `latents`, the random vector, that one is made from.
    """
    trained = identity.trained_choice(experiment)
    specs = optional(dataset, "column_specs") or {}
    columns = {name: spec.dtype.name for name, spec in specs.items()}
    data = (experiment.choices or {}).get("dataset", "data")
    parts = [
        f"# {trained} on {data}, step {step}",
        _table(
            {
                "run": run_dir.name,
                "model": _model(experiment, parameters),
                **_data(data, dataset),
            }
        ),
        "## Metrics",
        _metrics(run_dir, step),
        "## Input and output",
        _functions(experiment, dataset, signatures, model_inputs, columns),
        "## Use it",
        _usage(signatures, model_inputs, columns),
        "## Configuration",
        _table(_configuration(experiment)),
        "## Versions",
        _table(_versions(provenance.read(run_dir))),
    ]
    return "\n\n".join(parts) + "\n"


def _model(experiment: Experiment, parameters: Mapping[str, int]) -> str:
    ((name, count),) = parameters.items()
    choices = experiment.choices or {}
    model = choices.get(f"task.{name}", identity.trained_choice(experiment))
    return f"{model}, {count:,} parameters"


def _configuration(experiment: Experiment) -> dict[str, str]:
    return {
        key: constraints.format_value(value)
        for key, value in normalization.leaves(experiment).items()
        if key.partition(".")[0] in _SECTIONS
    }


def _data(name: str, dataset: Dataset) -> dict[str, str]:
    train = f"{dataset.train.num_examples:,} examples to train on"
    test = f"{dataset.test.num_examples:,} to test on"
    names = optional(dataset, "class_names") or []
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names[:_MAX_CLASS_NAMES]))
    more = ", ..." if len(names) > _MAX_CLASS_NAMES else ""
    outputs = f"{dataset.num_classes}: {listed}{more}" if names else f"{dataset.num_classes}"
    title = {"class": "classes", "number": "targets", "multilabel": "labels"}
    return {"data": f"{name}: {train}, {test}", title[label_kind_of(dataset)]: outputs}


def _metrics(run_dir: Path, step: int) -> str:
    """Return the metrics of the test split at this step, from training or from mode=evaluate."""
    metrics = read_marker(run_dir / "checkpoints", step)["metrics"]
    file = run_dir / f"evaluation-{step}.json"
    if file.exists():
        metrics = {**metrics, **read_json(file)["metrics"]}
    if not metrics:
        command = f"mode=evaluate resume={run_dir} checkpoint={step}"
        return f"Not evaluated at this step; run `{command}` and export again."
    rows = {name: f"{value:.6g}" for name, value in metrics.items()}
    return f"On the test split:\n\n{_table(rows)}"


def _functions(
    experiment: Experiment,
    dataset: Dataset,
    signatures: Mapping[str, Mapping[str, str]],
    model_inputs: Mapping[str, Input],
    columns: Mapping[str, str],
) -> str:
    if "latents" in model_inputs:
        return _latents_and_samples(model_inputs["latents"][0])
    if "generate" in signatures:
        return _tokens_and_logits(experiment, model_inputs["features"][0])
    return _input_and_output(experiment, dataset, signatures, model_inputs, columns)


def _input_and_output(
    experiment: Experiment,
    dataset: Dataset,
    signatures: Mapping[str, Mapping[str, str]],
    model_inputs: Mapping[str, Input],
    columns: Mapping[str, str],
) -> str:
    kind = label_kind_of(dataset)
    inputs = "; ".join(
        f"`{name}`, [{', '.join(['N', *(str(side or 'any') for side in shape)])}] {dtype}"
        for name, (shape, dtype) in model_inputs.items()
    )
    rule = optional(dataset, "features_rule") or _FEATURES_RULE
    lines = [f"- `serving_default`: {inputs}, {rule}."]
    if "serving_texts" in signatures:
        lines.append(
            "- `serving_texts`: `texts`, [N] strings in UTF-8; what makes tokens of them is inside."
        )
    if "serving_images" in signatures:
        lines.append(
            "- `serving_images`: `images`, [N] strings, the bytes of JPEG, PNG, GIF or BMP files. "
            "Decoding, resizing, scaling and normalisation are inside; one broken file fails its "
            "whole batch."
        )
    if columns:
        listed = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        lines.append(
            f"- `serving_columns`: the columns of the table, each [N]: {listed}. A missing number "
            'is NaN, a missing string ""; dates are days since 1970. Scaling and categories are '
            "inside, as in `dataset.json`."
        )
    outputs = signatures["serving_default"]
    listed = ", ".join(f"`{name}`, {specification}" for name, specification in outputs.items())
    is_explained = kind != "class" or "label" in outputs
    meaning = f" ({_LAST_OUTPUT[kind]})" if is_explained else ""
    lines.append(
        f"\nAll return {listed}{meaning}. It was trained with "
        f"precision={experiment.precision}. N may be any size. Another N may select other kernels, "
        "and so differ in the last bits: for bit-equal repetition send batches of one size, the "
        "last one filled up."
    )
    return "\n".join(lines)


def _latents_and_samples(latent_shape: Sequence[int | None]) -> str:
    shape = ", ".join(["N", *map(str, latent_shape)])
    return (
        f"- `serving_default`: `latents`, [{shape}] float32, independent numbers from the standard "
        "normal distribution.\n\nIt returns `samples`, float32: one generated example for each "
        "vector, as the dataset hands examples to a model (scaled, images in [0, 1])."
    )


def _tokens_and_logits(experiment: Experiment, input_shape: Sequence[int | None]) -> str:
    length = input_shape[0]
    sampling = experiment.predict.sampling
    among = "all" if sampling.top_k is None else f"the {sampling.top_k} most likely"
    return (
        f"- `serving_default`: `features`, [N, {length}] int32, tokens. It returns `logits`, "
        f"[N, {length}, tokens of the vocabulary] float32, of the token after each.\n"
        f"- `generate`: `features`, [N, {length}] int32, the tokens of a prompt and then any "
        "others; `size`, [N] int32, how many tokens the prompt has, at least one; `id`, [N] int64: "
        "another number is another text. It returns `text`, "
        f"[N, {sampling.tokens}] int32, the tokens that follow, chosen among {among} at "
        f"temperature {sampling.temperature:g}. To export other choices, add e.g. "
        "`predict.sampling.temperature=0.5`."
    )


def _usage(
    signatures: Mapping[str, Mapping[str, str]],
    model_inputs: Mapping[str, Input],
    columns: Mapping[str, str],
) -> str:
    if columns:
        values = {"string": 'tf.constant([""])', "float64": "tf.constant([0.0], tf.float64)"}
        row = ", ".join(f'"{column}": {values[kind]}' for column, kind in columns.items())
        call = [
            'predict = model.signatures["serving_columns"]',
            f"row = {{{row}}}  # your row",
            "predictions = predict(**row)",
        ]
    elif "serving_images" in signatures:
        call = [
            'predict = model.signatures["serving_images"]',
            'predictions = predict(images=tf.constant([open("image.png", "rb").read()]))',
        ]
    elif "serving_texts" in signatures:
        call = [
            'predict = model.signatures["serving_texts"]',
            'predictions = predict(texts=tf.constant(["your text"]))',
        ]
    elif "generate" in signatures:
        call = [
            'generate = model.signatures["generate"]',
            'length = generate.structured_input_signature[1]["features"].shape[1]',
            'prompt = list(b"The")  # tokens of your prompt',
            "features = tf.constant([prompt + [0] * (length - len(prompt))])",
            "size = tf.constant([len(prompt)])",
            "predictions = generate(features=features, size=size, id=tf.constant([0], tf.int64))",
        ]
    else:
        make = "tf.random.normal" if "latents" in model_inputs else "tf.zeros"
        features = ", ".join(
            f'"{name}": {make}({[1, *(side or 1 for side in shape)]}{_dtype_argument(dtype)})'
            for name, (shape, dtype) in model_inputs.items()
        )
        call = [
            'predict = model.signatures["serving_default"]',
            f"inputs = {{{features}}}  # yours",
            "predictions = predict(**inputs)",
        ]
    lines = [
        "import tensorflow as tf",
        'model = tf.saved_model.load("saved_model")',
        *call,
        "print(predictions)",
    ]
    return "```python\n" + "\n".join(lines) + "\n```"


def _dtype_argument(dtype: str) -> str:
    return "" if dtype == "float32" else f", tf.{dtype}"


def _versions(record: Mapping[str, Any]) -> dict[str, str]:
    latest = provenance.latest_command(record)
    git = latest.get("git") or {}
    dirty = " with uncommitted changes" if git.get("dirty", git.get("diff")) else ""
    return {
        "code": f"{git['sha']}{dirty}" if git else "not in a repository",
        "trained": str(latest.get("started", "unknown")),
        "python": str(latest.get("python", "unknown")),
        **latest.get("versions", {}),
    }


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(
        ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]
    )
