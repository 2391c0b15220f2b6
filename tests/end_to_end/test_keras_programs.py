"""Programs as users of Keras write them: each trains what it says, or is refused in one line."""

import re

import pytest

from tests.support.processes import ROOT, finished, run
from tests.support.training import recipe
from trainer.errors import ConfigError
from trainer.launch.modes.run_comparison import read

TWO = ("strategy=mirrored", "strategy.virtual_devices=2")
PROGRAM = ("model=softmax", "~model.l2", "dataset=digits")
STREAM = (
    "model=softmax",
    "dataset=stream",
    "dataset.num_classes=10",
    "dataset.test._target_=tests.programs.batched_stream.single",
)
SHORT = ("train.steps=2", "batch.global_size=16", "writers=[jsonl]")

REFUSED = {
    "softmax.convnet": r"the probabilities of a softmax \(layer .*dense.*\)",
    "softmax.legacy_convnet": r"the probabilities of a softmax \(layer .*shares\)",
    "softmax.subclassed": r"the probabilities of a softmax \(layer .*classifier.*\)",
    "softmax.sigmoid": r"takes one output \[B, 10\], the model returns \[B, 1\]; give its last",
    "softmax.too_many": r"takes one output \[B, 10\], the model returns \[B, 30\]; give its last",
    "softmax.two_heads": r"the model returns a list of 2: \[B, 10\], \[B, 1\]; give",
    "softmax.named_heads": r"a dict of 2: digit \[B, 10\], sum \[B, 1\]; give",
    "softmax.forgetful": r"the model returns None; give",
    "softmax.nothing": r"softmax.nothing\) must return a model of Keras, and returns None; add",
    "train_step.custom_model": r"train_step.CustomModel overrides train_step, which is not called",
    "train_step.custom_loss": r"train_step.CustomLoss overrides compute_loss, which is not called",
    "unbuilt.pairs": r"Pairs\) has no variables yet, and calling it .* fails: .*; correct its call",
    "unbuilt.named": r"Named\) has no variables yet, .* fails: AttributeError: .*; correct its",
}
STREAMS_REFUSED = {
    "batched": r"an element of train is \(float32\[\?,8,8,1\], int64\[\?\]\): it is a batch",
    "full_batches": r"an element of train is \(float32\[32,8,8,1\], int64\[32\]\): it is a batch",
    "columns": r"is \(\{pixels: float32\[8,8,1\], mean: float32\[\]\}, int64\[\]\): the features",
    "weighted": r"is \(float32\[8,8,1\], int64\[\], float32\[\]\): it must be \(features, label\)",
    "features_only": r"is float32\[8,8,1\]: it must be \(features, label\)",
    "two_labels": r"is \(float32\[8,8,1\], \(int64\[\], int64\[\]\)\): the label must be one",
    "numbers": r"float32\[\]\): the label must be an integer, .*=class\); cast it",
}


def model(name):
    return (*PROGRAM, *SHORT, f"model._target_=tests.programs.{name}")


def stream(name):
    return (*STREAM, *SHORT, f"dataset.train._target_=tests.programs.batched_stream.{name}")


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
    problem = r"optimizer \(SGD\) is none of .* use one such as tf.keras.optimizers.legacy.SGD, or"
    assert_refused(tmp_path, problem, *model("unbuilt.net"), *optimizer, "~optimizer.weight_decay")


def test_program_is_refused_on_two_replicas(tmp_path):
    name = "softmax.subclassed"
    assert_refused(tmp_path, REFUSED[name], *model(name), *TWO)


@pytest.mark.parametrize("option", ["jit=true", "batch.accumulate=2", "batch.shards=2"])
def test_softmax_is_found_in_every_form_of_the_step(tmp_path, option):
    name = "softmax.convnet"
    assert_refused(tmp_path, REFUSED[name], *model(name), option)


@pytest.mark.parametrize("name", ["convnet", "legacy_convnet"])
def test_compiled_model_trains_and_says_what_is_ignored(tmp_path, name, caplog):
    train(tmp_path, *model(f"compiled.{name}"), *TWO)
    loss, optimizer = {
        "convnet": ("sparse_categorical_crossentropy", "SGD"),
        "legacy_convnet": ("mse", "RMSprop"),
    }[name]
    assert [record.getMessage() for record in caplog.records if "compiled" in record.msg] == [
        f"model is compiled: its loss ({loss}), optimizer ({optimizer}) and metrics are not used; "
        "task=classification, optimizer=adam and metrics= decide"
    ]


@pytest.mark.parametrize("name", ["net", "legacy_net"])
def test_unbuilt_model_is_built(tmp_path, name):
    run = train(tmp_path, *model(f"unbuilt.{name}"), *TWO)
    assert [tuple(v.shape) for v in run.state.task.models["model"].trainable_variables] == [
        (64, 8), (8,), (8, 10), (10,),
    ]  # fmt: skip


@pytest.mark.parametrize("name", STREAMS_REFUSED)
def test_stream_is_refused_in_one_line(tmp_path, name):
    assert_refused(tmp_path, STREAMS_REFUSED[name], *stream(name))


@pytest.mark.parametrize("name", ["single", "one_hot"])
def test_stream_of_classes_trains(tmp_path, name):
    train(tmp_path, *stream(name))


def test_stream_of_numbers_trains(tmp_path):
    options = ("task=regression", "dataset.label_kind=number", "dataset.num_classes=1")
    test = "dataset.test._target_=tests.programs.batched_stream.numbers"
    train(tmp_path, *stream("numbers"), *options, test)


# What two processes are told: of each program the line, and exit code 2 and no run.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "problem", "strategy"),
    [
        (model("softmax.convnet"), REFUSED["softmax.convnet"], "parameter_server"),
        (stream("batched"), STREAMS_REFUSED["batched"], "multi_worker"),
    ],
    ids=["softmax, handed out", "batched_stream"],
)
def test_cluster_refuses_in_one_line(tmp_path, monkeypatch, overrides, problem, strategy):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code, out, err = run(tmp_path, *overrides, f"strategy={strategy}")
    assert (code, len(err.splitlines())) == (2, 1), f"{out}\n{err}"
    assert re.search(problem, err)
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.slow
def test_cluster_trains_as_two_replicas():
    mirrored, multi_worker = (
        read(finished(*model("unbuilt.net"), *strategy))
        for strategy in (TWO, ("strategy=multi_worker",))
    )
    assert mirrored.variables == multi_worker.variables
