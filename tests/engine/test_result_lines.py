"""The lines of epochs and evaluations: their columns, what is best, and what the numbers are."""

import math

from trainer.cli.compose import compose
from trainer.config.directions import Directions
from trainer.engine.result_lines import ResultLines, result_lines

TRAIN = {"loss": 2.25021, "accuracy": 0.22852}


def lines(**changed):
    settings = {
        "total_steps": 337, "num_epochs": 30, "split": "test",
        "train_names": ["loss", "accuracy"], "metric": "accuracy", "mode": "max",
    }  # fmt: skip
    return ResultLines(**{**settings, **changed})


def evaluated(accuracy, loss=2.1137):
    return {"loss": loss, "accuracy": accuracy, "recall/cat": 0.5}


def test_columns_keep_their_place_and_the_best_so_far_is_marked():
    shown = lines()
    assert [
        shown.line(7, None, TRAIN, evaluated(0.5)),
        shown.line(12, 1, TRAIN, None),
        shown.line(330, 29, {"loss": 12.345, "accuracy": 1.0}, evaluated(0.25)),
        shown.line(337, 30, None, evaluated(0.75, 0.00001)),
    ] == [
        "             step   7  train 2.2502 0.229  test 2.1137 0.500  best",
        "epoch  1/30  step  12  train 2.2502 0.229",
        "epoch 29/30  step 330  train 12.345 1.000  test 2.1137 0.250",
        "epoch 30/30  step 337                      test  1e-05 0.750  best",
    ]


def test_best_is_that_of_all_attempts():
    shown = lines(metric="loss", mode="min")
    shown.recall([evaluated(0.5, 1.5), evaluated(0.5, math.nan), evaluated(0.5, 0.5)])
    marks = [shown.line(9, None, None, evaluated(0.5, loss)) for loss in (0.6, 0.5, math.nan, 0.4)]
    assert [mark.endswith("best") for mark in marks] == [False, False, False, True]
    assert not lines(mode=None).line(9, None, None, evaluated(0.5)).endswith("best")


def test_best_checkpoints_and_the_lines_agree_on_the_metric():
    directions = Directions({"loss": "min", "accuracy": "max"}, "accuracy")
    shown = result_lines(compose(["train.epochs=3"]), 34, "test", [], directions)
    assert (shown.num_epochs, shown.metric, shown.mode) == (3, "accuracy", "max")
    steps = compose(["train.steps=3", "checkpoint.best.metric=loss"])
    shown = result_lines(steps, 3, "test", [], directions)
    assert (shown.num_epochs, shown.metric, shown.mode) == (None, "loss", "min")
