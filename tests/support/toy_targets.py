"""A user-defined task with a target network, which follows the model with a delay."""

from __future__ import annotations

from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts
from trainer.tasks.classification import Classification


class WithTarget(Classification):
    """Classification whose target network follows the model, and that stays near its logits."""

    def build(self, parts: TaskParts) -> None:
        super().build(parts)
        target = parts.model()
        target.set_weights(self.models["model"].get_weights())
        target.trainable = False
        self.models["target"] = target

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        def loss(part: Batch) -> PerExample:
            losses, metrics = self._loss(part, training=True)
            logits = self._outputs(part, training=True)
            gap = logits[:, 0] - self.models["target"](part["features"])[:, 0]
            return losses + gap**2, metrics

        model = self.models["model"]
        metrics = step.minimize(loss, batch, model, self.optimizers["model"])
        step.soft_update(self.models["target"], model, 0.25)
        return metrics
