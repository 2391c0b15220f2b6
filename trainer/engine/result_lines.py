"""The lines of a training for the user: one for each epoch or evaluation. No TensorFlow.

    epoch  1/30  step  12  train 2.2503 0.229  test 2.1137 0.658  best

Columns keep their place: their widths follow from the length of the training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.config.directions import Directions
from trainer.config.schema import Experiment
from trainer.text import without_classes

_WIDTHS = {"loss": 6}
_WIDTH = 5  # of other metrics: most are between 0 and 1


@dataclass(kw_only=True)
class ResultLines:
    """Makes the lines of one training.

    Attributes:
        total_steps: length of the whole training.
        num_epochs: the same in epochs; None: it is given in steps.
        split: the split that selects, `validation` or `test`.
        train_names: names of the training's metrics.
        metric: the metric by which an evaluation is the best so far.
        mode: whether `max` or `min` is best; None: nobody knows.
        best: the best value so far; NaN before the first evaluation.
        explained: the splits whose numbers are explained.
    """

    total_steps: int
    num_epochs: int | None
    split: str
    train_names: Sequence[str]
    metric: str
    mode: str | None
    best: float = math.nan
    explained: set[str] = field(default_factory=set)

    def recall(self, evaluations: Iterable[Mapping[str, float]]) -> None:
        """Take the evaluations of earlier attempts, and forget those of this one."""
        self.best = math.nan
        for metrics in evaluations:
            self._is_best(metrics)

    def legend(self, evaluated: Iterable[str]) -> str:
        """Return what the numbers are: `train and test: loss, accuracy; best: highest accuracy`.

        Args:
            evaluated: names of the evaluation's metrics; empty: there was none at this step.

        Returns:
            The text, without what was returned before; empty: all was.
        """
        names = {"train": self._shown(self.train_names), self.split: self._shown(evaluated)}
        new = {split: ", ".join(part) for split, part in names.items() if part}
        new = {split: text for split, text in new.items() if split not in self.explained}
        self.explained |= new.keys()
        parts = [f"{split}: {text}" for split, text in new.items()]
        if len(new) == 2 and len({*new.values()}) == 1:
            parts = [f"{' and '.join(new)}: {new['train']}"]
        better = {"max": "highest", "min": "lowest"}.get(self.mode or "")
        if better and self.split in new:
            parts.append(f"best: {better} {self.metric}")
        return "; ".join(parts)

    def line(
        self,
        step: int,
        epoch: int | None,
        train: Mapping[str, float] | None,
        evaluated: Mapping[str, float] | None,
    ) -> str:
        """Return the line of an epoch, an evaluation, or both.

        Args:
            step: number of updates made.
            epoch: number of the epoch that ends here, from 1; None: none does.
            train: the training's metrics since the last line; None: unknown.
            evaluated: those of the split that selects; None: nothing was evaluated.
        """
        cells = [self._position(step, epoch)]
        blank = self._numbers("train", dict.fromkeys(self.train_names, 0.0))
        cells.append(self._numbers("train", train) if train else " " * len(blank))
        if evaluated:
            cells.append(self._numbers(self.split, evaluated))
            if self._is_best(evaluated):
                cells.append("best")
        return "  ".join(cells).rstrip()

    def _position(self, step: int, epoch: int | None) -> str:
        width = len(str(self.total_steps))
        if self.num_epochs is None:
            return f"step {step:>{width}}/{self.total_steps}"
        total = str(self.num_epochs)
        text = f"epoch {epoch or '':>{len(total)}}/{total}"
        return f"{text if epoch else ' ' * len(text)}  step {step:>{width}}"

    def _shown(self, names: Iterable[str]) -> list[str]:
        """Return the names of the metrics that are shown: the loss and the main one."""
        names = list(without_classes(dict.fromkeys(names, 0.0)))
        names.sort(key=lambda name: (name != "loss", name != self.metric))
        return names[:2]

    def _numbers(self, split: str, metrics: Mapping[str, float]) -> str:
        numbers = [
            _fixed(metrics[name], _WIDTHS.get(name, _WIDTH)) for name in self._shown(metrics)
        ]
        return " ".join([split, *numbers])

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        value = metrics.get(self.metric, math.nan)
        if self.mode is None or math.isnan(value):
            return False
        is_better = value > self.best if self.mode == "max" else value < self.best
        if is_better or math.isnan(self.best):
            self.best = value
            return True
        return False


def result_lines(
    experiment: Experiment,
    total_steps: int,
    split: str,
    train_names: Sequence[str],
    directions: Directions,
) -> ResultLines:
    """Return what makes the lines of a run; see `ResultLines`."""
    best = experiment.checkpoint.best
    metric = best.metric or directions.primary
    return ResultLines(
        total_steps=total_steps,
        num_epochs=experiment.train.epochs,
        split=split,
        train_names=train_names,
        metric=metric,
        mode=directions.mode(metric, best.mode if best.metric else "auto"),
    )


def _fixed(value: float, width: int) -> str:
    """Return a number with as many decimals as its width has room for, or as `1e-05`."""
    decimals = width - 2
    if 0 < abs(value) < 10**-decimals:
        return f"{value:{width}.0e}"
    texts = (f"{value:{width}.{count}f}" for count in range(decimals, -1, -1))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")
