"""MODEL_CARD.md of an export: model, data, metrics, inputs and outputs. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.files import read_json
from trainer.protocols import (
    Dataset,
    DatasetDefaults,
    LabelKind,
    Served,
    label_kind_of,
    with_defaults,
)
from trainer.runs import identity, provenance
from trainer.runs.checkpoint_marker import read_marker
from trainer.runs.secret_masking import shown

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
_FEATURES_RULE = "as the dataset hands them to the model (scaled and normalized)"
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
    served: Served,
    *,
    parameters: Mapping[str, int],
) -> str:
    """Return the card, in Markdown.

    Args:
        parameters: number of parameters of the exported model, by its name in the task.
    """
    trained = identity.trained_choice(experiment)
    from_columns = served.functions.get("serving_columns")
    specs = {} if from_columns is None else _inputs(from_columns)
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
        served.text or _input_and_output(experiment, dataset, served, columns),
        "## Use it",
        _usage(served, columns),
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
        for key, value in shown(identity.leaves(experiment)).items()
        if key.partition(".")[0] in _SECTIONS
    }


def _data(name: str, dataset: Dataset) -> dict[str, str]:
    train = f"{dataset.train.num_examples:,} examples to train on"
    test = f"{dataset.test.num_examples:,} to test on"
    names = with_defaults(dataset, DatasetDefaults).class_names or []
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names[:_MAX_CLASS_NAMES]))
    more = ", ..." if len(names) > _MAX_CLASS_NAMES else ""
    outputs = f"{dataset.num_classes}: {listed}{more}" if names else f"{dataset.num_classes}"
    title = {"class": "classes", "number": "targets", "multilabel": "labels"}
    kind = label_kind_of(dataset)
    return {"data": f"{name}: {train}, {test}", **({} if kind is None else {title[kind]: outputs})}


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


def _input_and_output(
    experiment: Experiment,
    dataset: Dataset,
    served: Served,
    columns: Mapping[str, str],
) -> str:
    kind = label_kind_of(dataset)
    inputs = _in_words(_inputs(served.functions["serving_default"]), "any")
    rule = with_defaults(dataset, DatasetDefaults).features_rule or _FEATURES_RULE
    lines = [f"- `serving_default`: {inputs}, {rule}."]
    if "serving_texts" in served.functions:
        lines.append(
            "- `serving_texts`: `texts`, [N] strings in UTF-8; what makes tokens of them is inside."
        )
    if "serving_images" in served.functions:
        lines.append(
            "- `serving_images`: `images`, [N] strings, the bytes of JPEG, PNG, GIF or BMP files. "
            "Decoding, resizing, scaling and normalization are inside; one broken file fails its "
            "whole batch."
        )
    if columns:
        listed = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        lines.append(
            f"- `serving_columns`: the columns of the table, each [N]: {listed}. A missing number "
            'is NaN, a missing string ""; dates are days since 1970. Scaling and categories are '
            "inside, as in `dataset.json`."
        )
    outputs = served.functions["serving_default"].structured_outputs
    listed = _in_words(outputs, "None", ", ")
    meaning = ""
    if kind is not None and (kind != "class" or "label" in outputs):
        meaning = f" ({_LAST_OUTPUT[kind]})"
    lines.append(
        f"\nAll return {listed}{meaning}. It was trained with "
        f"precision={experiment.precision}. N may be any size. Another N may select other kernels, "
        "and so differ in the last bits: for bit-equal repetition send batches of one size, the "
        "last one filled up."
    )
    return "\n".join(lines)


def _inputs(function: Any) -> dict[str, Any]:
    """Return shape and dtype of each input of a served function, by name, as `tf.TensorSpec`."""
    arguments, options = function.structured_input_signature
    return dict(sorted(options.items())) or {spec.name: spec for spec in arguments}


def _in_words(specs: Mapping[str, Any], unknown: str, separator: str = "; ") -> str:
    """Return names, shapes and dtypes, such as "`features`, [N, 8, 8, 1] float32"."""
    return separator.join(
        f"`{name}`, [{', '.join(['N', *(str(side or unknown) for side in spec.shape[1:])])}] "
        f"{spec.dtype.name}"
        for name, spec in specs.items()
    )


def _usage(served: Served, columns: Mapping[str, str]) -> str:
    if served.usage:
        call = list(served.usage)
    elif columns:
        values = {"string": 'tf.constant([""])', "float64": "tf.constant([0.0], tf.float64)"}
        row = ", ".join(f'"{column}": {values[kind]}' for column, kind in columns.items())
        call = [
            'predict = model.signatures["serving_columns"]',
            f"row = {{{row}}}  # your row",
            "predictions = predict(**row)",
        ]
    elif "serving_images" in served.functions:
        call = [
            'predict = model.signatures["serving_images"]',
            'predictions = predict(images=tf.constant([open("image.png", "rb").read()]))',
        ]
    elif "serving_texts" in served.functions:
        call = [
            'predict = model.signatures["serving_texts"]',
            'predictions = predict(texts=tf.constant(["your text"]))',
        ]
    else:
        features = ", ".join(
            f'"{name}": tf.zeros({[1, *(side or 1 for side in spec.shape[1:])]}'
            f"{_dtype_argument(spec.dtype.name)})"
            for name, spec in _inputs(served.functions["serving_default"]).items()
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
