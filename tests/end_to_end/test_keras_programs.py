"""Programs as users of Keras write them: each trains what it says, or is refused in one line."""

import re

import pytest

from tests.support.processes import ROOT, run
from tests.support.training import recipe
from trainer.errors import ConfigError

TWO = ("strategy=mirrored", "strategy.virtual_devices=2")
PROGRAM = ("model=softmax", "~model.l2", "dataset=digits")
STREAM = ("model=softmax", "dataset=stream", "dataset.num_classes=10")
SHORT = ("train.steps=2", "batch.global_size=16", "writers=[jsonl]")

REFUSED = {
    "softmax.convnet": r"the probabilities of a softmax \(layer .*dense.*\)",
    "softmax.sigmoid": r"takes one output \[B, 10\], the model returns \[B, 1\]; give its last",
    "softmax.two_heads": r"the model returns a list of 2: \[B, 10\], \[B, 1\]; give",
    "unbuilt.pairs": r"Pairs\) has no variables yet, and calling it .* fails: .*; correct its call",
}
STREAMS_REFUSED = {
    "weighted": r"task \(Classification\) does not use the sample weights of the dataset; choose",
    "numbers": r"the dataset's labels are numbers; choose task=regression, or a dataset of classes",
}


def model(name):
    return (*PROGRAM, *SHORT, f"model._target_=tests.programs.{name}")


def stream(name):
    return (
        *STREAM,
        *SHORT,
        *(
            f"dataset.{split}._target_=tests.programs.batched_stream.{name}"
            for split in ("train", "test")
        ),
    )


def train(directory, *overrides):
    engine = recipe(directory, *overrides)
    assert engine.train(lambda: False)
    return engine


def assert_refused(directory, problem, *overrides):
    with pytest.raises(ConfigError, match=problem) as caught:
        train(directory, *overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_program_is_refused_in_one_line(tmp_path, name):
    assert_refused(tmp_path, REFUSED[name], *model(name))


def test_optimizer_of_keras_is_refused_in_one_line(tmp_path):
    optimizer = ("optimizer=sgd", "optimizer._target_=tensorflow.keras.optimizers.SGD")
    problem = r"optimizer \(SGD\) is not in .* use one such as tf.keras.optimizers.legacy.SGD, or"
    assert_refused(tmp_path, problem, *model("unbuilt.net"), *optimizer, "~optimizer.weight_decay")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [TWO, ("jit=true",), ("batch.accumulate=2",), ("batch.shards=2",)]
)
def test_softmax_is_found_in_every_form_of_the_step(tmp_path, options):
    name = "softmax.convnet"
    assert_refused(tmp_path, REFUSED[name], *model(name), *options)


@pytest.mark.parametrize("name", STREAMS_REFUSED)
def test_stream_is_refused_in_one_line(tmp_path, name):
    assert_refused(tmp_path, STREAMS_REFUSED[name], *stream(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batched", "one_hot"])
def test_stream_of_classes_trains(tmp_path, name):
    train(tmp_path, *stream(name), "dataset.label_kind=class")


def test_stream_of_numbers_trains(tmp_path):
    train(tmp_path, *stream("numbers"), "task=regression", "dataset.num_classes=1")


@pytest.mark.slow
def test_cluster_refuses_in_one_line_and_leaves_no_run(tmp_path):
    options = (*model("softmax.convnet"), "strategy=parameter_server")
    code, out, err = run(tmp_path, *options, PYTHONPATH=str(ROOT))
    assert (code, len(err.splitlines())) == (2, 1), f"{out}\n{err}"
    assert re.search(REFUSED["softmax.convnet"], err)
    assert not list(tmp_path.glob("runs/*"))
