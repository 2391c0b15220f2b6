"""The task contract: its metrics, and the names of its models and optimizers."""

import pytest

from tests.support.training import engine
from trainer.errors import ConfigError
from trainer.tasks.classification import Classification


class Silent(Classification):
    """Predicts nothing."""

    predict_step = None


SILENT = f"task._target_={__name__}.Silent"


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


class SharedOptimizer(Classification):
    """Two models with one optimizer."""

    def build(self, parts):
        self.models = {"model": parts.model(), "teacher": parts.model()}
        self.optimizers = dict.fromkeys(self.models, parts.optimizer())


class SharedModel(Classification):
    """Two optimizers of one model."""

    def build(self, parts):
        self.models = dict.fromkeys(["model", "teacher"], parts.model())
        self.optimizers = {name: parts.optimizer() for name in self.models}


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (Misnamed, r"optimizers has modle, .* model, teacher; did you mean 'model'\?$"),
        (SharedOptimizer, r"optimizers has the same .* call parts.optimizer\(\) for each model$"),
        (SharedModel, "models has the same object as model and as teacher; give each .* one name$"),
    ],
)
def test_optimizer_that_would_not_be_saved_is_refused(tmp_path, task, problem):
    with pytest.raises(ConfigError, match=f"^task: {problem}"):
        engine(tmp_path, f"task._target_={__name__}.{task.__name__}")
