"""When things happen: pure functions of the step. An epoch is a reporting interval; the data's order does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.schema import Train


@dataclass(frozen=True)
class Epochs:
    """Maps epochs, counted from 0, to steps.

    A batch may straddle two passes over the data, so the boundary of epoch k is the first step by which k + 1 passes are
    complete: ceil((k + 1) * num_examples / global_size).

    Attributes:
        num_examples: examples in one pass.
        global_size: examples in one step.
        steps_per_epoch: a fixed length in steps instead of one pass over the data; None: one pass.
    """

    num_examples: int
    global_size: int
    steps_per_epoch: int | None = None

    def end(self, epoch: int) -> int:
        """Gives the number of steps after which `epoch` is complete."""
        if self.steps_per_epoch is not None:
            return (epoch + 1) * self.steps_per_epoch
        return -(-(epoch + 1) * self.num_examples // self.global_size)

    def completed(self, step: int) -> int:
        """Gives how many epochs are complete after `step` steps."""
        if self.steps_per_epoch is not None:
            return step // self.steps_per_epoch
        return step * self.global_size // self.num_examples

    def ends_at(self, step: int) -> bool:
        """Says whether an epoch is complete after exactly `step` steps."""
        completed = self.completed(step)
        return completed > 0 and self.end(completed - 1) == step

    def total_steps(self, train: Train) -> int:
        """Gives the length of the whole training in steps."""
        if train.steps is not None:
            return train.steps
        assert train.epochs is not None, "config.check lets exactly one of the two be set"
        return self.end(train.epochs - 1)


@dataclass(frozen=True)
class Interval:
    """Every n steps, every m epochs, either or both. The last step is always due, so that nothing is left undone.

    Attributes:
        every_steps: due after each multiple of this; None: never on account of steps.
        every_epochs: due at the step that completes a multiple of this; None: never on account of epochs.
    """

    epochs: Epochs
    total_steps: int
    every_steps: int | None = None
    every_epochs: int | None = None

    def due(self, step: int) -> bool:
        """Says whether it is due after `step` steps."""
        # Past the end too: a run may be continued with a smaller length than it has reached.
        return step >= self.total_steps or (step > 0 and self.next_after(step - 1) == step)

    def next_after(self, step: int) -> int:
        """Gives the first step after `step` at which it is due."""
        candidates = [self.total_steps]
        if self.every_steps is not None:
            candidates.append((step // self.every_steps + 1) * self.every_steps)
        if self.every_epochs is not None:
            # The next multiple and not the next epoch: a batch larger than the dataset completes several epochs in one step.
            multiple = (self.epochs.completed(step) // self.every_epochs + 1) * self.every_epochs
            candidates.append(self.epochs.end(multiple - 1))
        return min(candidate for candidate in candidates if candidate > step)


def to_remove(steps: list[int], keep: int, protected: set[int]) -> list[int]:
    """Gives the checkpoints that retention removes: all but the newest `keep` and the protected (best) ones.

    Args:
        steps: steps of the committed checkpoints; those without a marker do not count, else a kill could leave none.
        keep: how many of the newest stay, at least 1.
        protected: steps that stay whatever their age.
    """
    return [step for step in sorted(steps)[:-keep] if step not in protected]
