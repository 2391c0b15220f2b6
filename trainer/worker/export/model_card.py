"""MODEL_CARD.md of an export: model, data, metrics, inputs and outputs. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment

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
    "model", "dataset", "task", "optimizer", "schedule", "batch", "precision", "seed", "train",
)  # fmt: skip
_MAX_CLASS_NAMES = 20
_FEATURES_RULE = "as the dataset passes them to the model (scaled and normalized)"
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
    """Return the card, in Markdown."""
    ((name, count),) = parameters.items()
    choices = experiment.choices or {}
    trained = identity.trained_choice(experiment)
    data_name = choices.get("dataset", "data")
    predict = served.functions["serving_default"]
    from_columns = served.functions.get("serving_columns")
    specs = {} if from_columns is None else _inputs(from_columns)
    outputs = predict.structured_outputs
    kind = label_kind_of(dataset)
    has_meaning = kind is not None and (kind != "class" or "label" in outputs)
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    template = Path(__file__).with_name("model_card.md.jinja").read_text("utf-8")
    card = environment.from_string(template).render(
        trained=trained,
        data_name=data_name,
        step=step,
        run_dir=run_dir,
        about={
            "run": run_dir.name,
            "model": f"{choices.get(f'task.{name}', trained)}, {count:,} parameters",
            **_data(data_name, dataset),
        },
        metrics=_metrics(run_dir, step),
        served=served,
        inputs=_inputs(predict),
        outputs=outputs,
        columns={name: spec.dtype.name for name, spec in specs.items()},
        rule=with_defaults(dataset, DatasetDefaults).features_rule or _FEATURES_RULE,
        meaning=f" ({_LAST_OUTPUT[kind]})" if kind is not None and has_meaning else "",
        precision=experiment.precision,
        configuration={
            key: constraints.format_value(value)
            for key, value in shown(identity.leaves(experiment)).items()
            if key.partition(".")[0] in _SECTIONS
        },
        versions=_versions(provenance.read(run_dir)),
    )
    return f"{card.strip()}\n"


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


def _metrics(run_dir: Path, step: int) -> dict[str, str]:
    """Return the metrics of the test split at this step, from training or from mode=evaluate."""
    metrics = read_marker(run_dir / "checkpoints", step)["metrics"]
    file = run_dir / f"evaluation-{step}.json"
    if file.exists():
        metrics = {**metrics, **read_json(file)["metrics"]}
    return {name: f"{value:.6g}" for name, value in metrics.items()}


def _inputs(function: Any) -> dict[str, Any]:
    """Return shape and dtype of each input of a served function, by name, as `tf.TensorSpec`."""
    arguments, options = function.structured_input_signature
    return dict(sorted(options.items())) or {spec.name: spec for spec in arguments}


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
