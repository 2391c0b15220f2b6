"""What is told of a split besides the task's own metrics: further metrics, a confusion matrix, wrongly classified examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from trainer import pictures
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.metric_names import feed, rehearse, require_known, values
from trainer.metrics.confusion import ConfusionMatrix
from trainer.mistakes import Mistakes, fetched
from trainer.outputs import Outputs
from trainer.peers import Peers
from trainer.protocols import Dataset, Metric, Task
from trainer.schema import Experiment

_BLOCK = 1024


class Measures:
    """Measures what a task predicts of a split. The chief does, and tells the others the numbers.

    Attributes:
        images: what the last evaluation has to show, in the chief; name -> [N, H, W, 3] uint8.

    Args:
        metrics: the metrics by name.
        mistakes: collects wrongly classified examples; None: they are not shown.
        outputs: gives the predictions.
        peers: the processes that predict together.
        run_dir: the run directory, for the confusion matrix.
    """

    def __init__(self, metrics: Mapping[str, Metric], mistakes: Mistakes | None, outputs: Outputs, peers: Peers, run_dir: Path) -> None:
        self._metrics, self._mistakes, self._outputs, self._peers, self._run_dir = metrics, mistakes, outputs, peers, run_dir
        self.images: Mapping[str, np.ndarray] = {}

    def measure(self, step: int, stop_requested: Callable[[], bool], enter: Callable[[str], None]) -> dict[str, float]:
        """Gives the values of the metrics over the split, in every process.

        Args:
            step: updates made.
            stop_requested: whether one was requested of this process.
            enter: is told before each graph call whether it will `compile`, or just `evaluate`.

        Raises:
            Stopped: a stop was requested meanwhile.
        """
        for metric in self._metrics.values():
            metric.reset_state()
        if self._mistakes:
            self._mistakes.reset()
        for block in blocks(self._outputs.each(0, stop_requested, enter), _BLOCK):
            if self._peers.is_chief:
                self._update(block)
        told: dict[str, float] = json.loads(self._peers.chiefs_text(json.dumps(self._conclude(step) if self._peers.is_chief else {})))
        return told

    def _update(self, block: Mapping[str, np.ndarray]) -> None:
        if "probabilities" not in block:
            raise ConfigError(f"metrics and summary.mistakes need 'probabilities' from the task's predict_step, it gives {sorted(block)}")
        labels, probabilities = block["label"].astype(np.int64), block["probabilities"]
        feed(self._metrics, labels, probabilities)
        if self._mistakes:
            self._mistakes.update(block["id"], labels, probabilities)

    def _conclude(self, step: int) -> dict[str, float]:
        """Gives the values, draws what there is to see, and writes confusion.json."""
        found: dict[str, float] = {}
        images = {}
        for name, metric in self._metrics.items():
            found |= values(name, metric)
            if isinstance(metric, ConfusionMatrix):
                images[name] = pictures.confusion_matrix(metric.matrix, metric.names())[None]
                content = {"step": step, "classes": metric.names(), "matrix": metric.matrix.astype(int).tolist()}
                write_atomically(self._run_dir / "confusion.json", json.dumps(content))
        if self._mistakes and len(wrong := self._mistakes.images()):
            images["mistakes"] = wrong
        self.images = images
        return found


def blocks(chunks: Iterable[Mapping[str, np.ndarray]], size: int) -> Iterator[dict[str, np.ndarray]]:
    """Divides a split anew, into blocks of `size` rows: how long a chunk is depends on the clock, and no bit of a metric may.

    Rows of weight 0, examples that could not be read, are left out.
    """
    kept: dict[str, np.ndarray] = {}
    for chunk in chunks:
        counts = chunk["weight"] > 0
        new = {name: rows[counts] for name, rows in chunk.items()}
        kept = {name: np.concatenate([kept[name], rows]) for name, rows in new.items()} if kept else new
        while len(kept["weight"]) >= size:
            yield {name: rows[:size] for name, rows in kept.items()}
            kept = {name: rows[size:] for name, rows in kept.items()}
    if kept and len(kept["weight"]):
        yield kept


def measures(
    experiment: Experiment,
    metrics: Mapping[str, Metric],
    task: Task,
    dataset: Dataset,
    outputs: Outputs | None,
    peers: Peers,
    run_dir: Path,
) -> Measures | None:
    """Makes what measures the test split besides the task's own metrics; None: nothing was asked for.

    Args:
        experiment: the configuration.
        metrics: the configured metrics by name. One that has an attribute `class_names` is given those of the dataset.
        task: whose own metrics there are too.
        dataset: the dataset.
        outputs: predicts its test split; None: the task predicts nothing.
        peers: the processes that predict together.
        run_dir: the run directory.

    Raises:
        ConfigError: what was asked for is not possible, or a metric is named that is not evaluated.
    """
    class_names = _class_names(dataset)
    for metric in metrics.values():
        if hasattr(metric, "class_names"):
            metric.class_names = class_names
    names = [*task.metrics, *rehearse(metrics, dataset.num_classes, task.metrics)]
    # The other modes have no writers, and keep nothing by a metric.
    mistakes = 0
    if experiment.mode == "train":
        require_known(experiment, names)
        mistakes = experiment.summary.mistakes
    wanted = {"metrics": ", ".join(metrics), "summary.mistakes": mistakes}
    asked = " and ".join(f"{key} ({value})" for key, value in wanted.items() if value)
    if not asked:
        return None
    if outputs is None:
        raise ConfigError(f"{asked} cannot be had of {type(task).__name__}: the task has no predict_step; add one, or leave them out")
    if "label" not in fetched(dataset):
        raise ConfigError(f"{asked} cannot be had of examples without 'label'; leave them out")
    return Measures(metrics, Mistakes(mistakes, dataset, class_names) if mistakes else None, outputs, peers, run_dir)


def _class_names(dataset: Dataset) -> list[str]:
    names = list(getattr(dataset, "class_names", None) or map(str, range(dataset.num_classes)))
    if len(names) != dataset.num_classes:
        raise ConfigError(f"the dataset has {len(names)} class_names for {dataset.num_classes} classes; give it one for each")
    return names
