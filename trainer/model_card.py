"""MODEL_CARD.md of an export: what was trained on what, how good it is, what goes in and what comes out. No TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer import identity, provenance, rules
from trainer.markers import marker
from trainer.protocols import Dataset
from trainer.schema import Experiment

_SECTIONS = ("model", "dataset", "task", "optimizer", "schedule", "batch", "precision", "seed", "train")
_MANY = 20


def text(
    experiment: Experiment,
    run_dir: Path,
    step: int,
    dataset: Dataset,
    signatures: Sequence[str],
    *,
    parameters: int,
    input_shape: list[int],
) -> str:
    """Writes the card.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory.
        step: that of the checkpoint.
        dataset: the data.
        signatures: what is served.
        parameters: how many the model has.
        input_shape: shape of one example's features.
    """
    choices, record = experiment.choices or {}, provenance.read(run_dir)
    model, data = choices.get("model", "model"), choices.get("dataset", "data")
    parts = [
        f"# {model} on {data}, step {step}",
        _table({"run": run_dir.name, "model": f"{model}, {parameters:,} parameters", **_data(data, dataset)}),
        "## Metrics",
        _metrics(run_dir, step),
        "## Input and output",
        _input_and_output(experiment, signatures, input_shape),
        "## Use it",
        _usage(signatures),
        "## Configuration",
        _table({key: rules.shown(value) for key, value in identity.content(experiment).items() if key.partition(".")[0] in _SECTIONS}),
        "## Versions",
        _table(_versions(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _data(name: str, dataset: Dataset) -> dict[str, str]:
    found = {"data": f"{name}: {dataset.train.num_examples:,} examples to train on, {dataset.test.num_examples:,} to test on"}
    names = getattr(dataset, "class_names", None) or []
    known = f": {', '.join(f'{number} {name}' for number, name in enumerate(names[:_MANY]))}{', ...' if len(names) > _MANY else ''}"
    return {**found, "classes": f"{dataset.num_classes}{known if names else ''}"}


def _metrics(run_dir: Path, step: int) -> str:
    """Gives the metrics of the test split at this step, as training or else mode=evaluate wrote them."""
    found = marker(run_dir / "checkpoints", step)["metrics"]
    file = run_dir / f"evaluation-{step}.json"
    if file.exists():
        found = {**found, **json.loads(file.read_text())["metrics"]}
    if not found:
        return f"Not evaluated at this step; `mode=evaluate resume={run_dir} checkpoint={step}` does it, and another export puts it here."
    return "On the test split:\n\n" + _table({name: f"{value:.6g}" for name, value in found.items()})


def _input_and_output(experiment: Experiment, signatures: Sequence[str], input_shape: list[int]) -> str:
    shape = ", ".join(["N", *map(str, input_shape)])
    lines = [f"- `serving_default`: `features`, [{shape}] float32, as the dataset hands them to the model (scaled and normalised)."]
    if "serving_images" in signatures:
        lines.append(
            "- `serving_images`: `images`, [N] strings, the bytes of JPEG, PNG, GIF or BMP files. Decoding, resizing, scaling and "
            "normalisation are inside; one broken file fails its whole batch."
        )
    lines.append(
        "\nBoth give float32: of a classifier `probabilities`, [N, classes], and `label`, [N] int64, the most probable. "
        f"It was trained with precision={experiment.precision}. Any N is taken. Different N may choose other kernels, and so differ in "
        "the last bits: for bit-equal repetition send batches of one size, the last one filled up."
    )
    return "\n".join(lines)


def _usage(signatures: Sequence[str]) -> str:
    images = "serving_images" in signatures
    given = 'tf.constant([open("image.png", "rb").read()])' if images else "tf.zeros([1, *shape])  # your features"
    first = [] if images else ['shape = model.signatures["serving_default"].structured_input_signature[1]["features"].shape[1:]']
    name, argument = ("serving_images", "images") if images else ("serving_default", "features")
    lines = [
        "import tensorflow as tf",
        'model = tf.saved_model.load("saved_model")',
        *first,
        f'predict = model.signatures["{name}"]',
        f"predictions = predict({argument}={given})",
        "print(predictions)",
    ]
    return "```python\n" + "\n".join(lines) + "\n```"


def _versions(record: Mapping[str, Any]) -> dict[str, str]:
    latest = provenance.latest(record)
    git = latest.get("git") or {}
    dirty = " with uncommitted changes" if git.get("dirty", git.get("diff")) else ""
    return {
        "code": f"{git['sha']}{dirty}" if git else "not in a repository",
        "trained": str(latest.get("started", "unknown")),
        "python": str(latest.get("python", "unknown")),
        **latest.get("versions", {}),
    }


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])
