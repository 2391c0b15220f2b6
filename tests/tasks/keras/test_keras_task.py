"""What the task of Keras programs reports, and what it refuses by key, or by file and line."""

import re

import pytest

from tests.support.training import recipe
from trainer.errors import ConfigError
from trainer.tasks.keras.user_model import check_source

STEPS = "model._target_=tests.programs.keras_steps"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["model=softmax", "optimizer=adam"], r"task.loss \(null\) .* add task.loss=<name>"),
        (["model=softmax", "task.loss=nonsense"], r"task.loss \(nonsense\) is no loss of Keras"),
        ([f"{STEPS}.vae", "task.loss=mse"], r"task.loss \(mse\) .* train_step, test_step"),
    ],
)
def test_loss_that_no_program_computes_is_refused(tmp_path, overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        recipe(tmp_path, "task=keras", "dataset=digits", *overrides)


class Steps:
    def counts(self, data):
        self.calls += 1
        return {"loss": data}

    def keeps(self, data):
        self.losses_so_far.append(data)
        return {"loss": data}

    def asks(self, data):
        return {"loss": data.numpy()}

    def is_fine(self, data):
        values = [data]
        values.append(self.weight.assign_add(1.0))
        return {"loss": values[0]}


@pytest.mark.parametrize(
    ("step", "offset", "problem"),
    [
        (Steps.counts, 1, "self.calls is assigned within a step"),
        (Steps.keeps, 1, "self.losses_so_far.append is called once"),
        (Steps.asks, 1, "data.numpy() requests a value"),
    ],
)
def test_side_effect_is_refused_by_its_line(step, offset, problem):
    line = step.__code__.co_firstlineno + offset
    place = re.escape(f"{__file__}:{line}: {problem}")
    with pytest.raises(ConfigError, match=place):
        check_source([step])


def test_what_is_traced_rightly_is_not_refused():
    check_source([Steps.is_fine])
