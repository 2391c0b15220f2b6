"""The task contract: its metrics, and the names of its models and optimizers."""

import pytest

from tests.support.training import engine
from trainer.errors import ConfigError
from trainer.tasks.classification import Classification


def test_task_must_return_the_metrics_that_it_declares(tmp_path):
    run = engine(tmp_path)
    run.state.task.metrics = ("loss", "top5")
    with pytest.raises(ValueError, match=r"\['loss', 'top5'\] .* \['accuracy', 'loss'\]"):
        run.train(lambda: False)


class Misnamed(Classification):
    """Its optimizer has another name than its model."""

    def build(self, parts):
        self.models = {"model": parts.model(), "teacher": parts.model()}
        self.optimizers = {"modle": parts.optimizer()}


def test_optimizer_that_would_not_be_saved_is_refused(tmp_path):
    problem = r"^task: optimizers has modle, .* model, teacher; did you mean 'model'\?$"
    with pytest.raises(ConfigError, match=problem):
        engine(tmp_path, f"task._target_={__name__}.Misnamed")
