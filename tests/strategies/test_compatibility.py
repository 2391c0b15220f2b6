"""Every feature under every strategy: refused with a reason, or allowed."""

import functools
import json

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tensorflow_config

from tests.support import keras3_models, toy_models
from tests.support.choices import listed
from tests.support.training import recipe
from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.config.instantiate import instantiate
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.errors import ConfigError
from trainer.strategies import compatibility, devices, select

LOCAL = ("mirrored", "central_storage")
STRATEGIES = {
    name: [f"strategy={name}", *(["strategy.virtual_devices=2"] if name in LOCAL else [])]
    for name in listed("strategy").split(", ")
    if name not in ("auto", "tpu")  # which is one of the others; which has a test file
}
LOCAL_NORM = ["model=softmax", "model._target_=tests.support.toy_models.normalized"]
SHORT = ["train.steps=3", "batch.global_size=16", "restart.max_restarts=0"]
FEATURES = {
    "mixed_float16": ["precision=mixed_float16"],
    "mixed_bfloat16": ["precision=mixed_bfloat16"],
    "jit": ["jit=true"],
    "accumulation": ["batch.accumulate=2"],
    "synchronized normalization": ["model.batch_norm=true"],
    "jit, synchronized normalization": ["jit=true", "model.batch_norm=true"],
    "accumulation, synchronized normalization": ["batch.accumulate=2", "model.batch_norm=true"],
    "jit, accumulation": ["jit=true", "batch.accumulate=2"],
    "jit, normalization": ["jit=true", *LOCAL_NORM],
    "accumulation, normalization": ["batch.accumulate=2", *LOCAL_NORM],
    "deterministic": ["deterministic=true", "augment.crop=1"],
    "deterministic, jit": ["deterministic=true", "jit=true", "model=softmax"],
    "deterministic, jit, max pooling": ["deterministic=true", "jit=true"],
    "clipping, averages, best, early stopping": [
        "train.clip_norm=0.05", "train.ema_decay=0.9", "checkpoint.best.metric=accuracy",
        "evaluate.every_steps=1", "callbacks=early_stopping",
    ],
    "inline": ["launch=inline"],
    "eager": ["eager=true"],
    "skip": ["divergence.action=skip"],
    "audit": ["watchdog.audit_every_steps=1"],
    "shards": ["batch.shards=4", "batch.accumulate=2", *LOCAL_NORM],
    "jit, shards": ["batch.shards=4", "jit=true", "model.dropout=0.3"],
    "histograms, images": [
        "summary.histograms=2", "summary.images=2", "model.batch_norm=true",
    ],
    "slow steps": ["fault=slow_worker"],
}  # fmt: skip

WITHOUT_THE_CHECK = [
    ("central_storage", "mixed_float16"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("central_storage", "jit"),
            ("mirrored", "jit, synchronized normalization"),
            ("one_device", "deterministic, jit, max pooling"),
        )
    ),
]
"""What is refused inside this process, a combination for each rule."""

REFUSED = {
    "one_device": {
        "accumulation, synchronized normalization", "deterministic, jit, max pooling", "audit",
    },
    "mirrored": {
        "jit, synchronized normalization", "accumulation, synchronized normalization",
        "deterministic, jit, max pooling",
    },
    "central_storage": {
        "mixed_float16", "jit", "jit, synchronized normalization", "jit, accumulation",
        "jit, normalization", "deterministic, jit",
        "deterministic, jit, max pooling", "audit", "jit, shards",
        "accumulation, synchronized normalization",
    },
    "multi_worker": {
        "jit, synchronized normalization", "accumulation, synchronized normalization",
        "deterministic, jit, max pooling", "inline",
    },
    "parameter_server": {
        "mixed_float16", "jit", "jit, synchronized normalization", "jit, accumulation",
        "jit, normalization", "deterministic", "deterministic, jit",
        "deterministic, jit, max pooling", "inline", "eager", "skip", "audit", "shards",
        "jit, shards", "histograms, images", "accumulation, synchronized normalization",
    },
}  # fmt: skip
"""Strategy -> the features that it does not have."""


@pytest.fixture
def restored_settings():
    """Undo what a run sets for the whole process."""
    yield
    tensorflow_config.disable_op_determinism()
    tf.keras.mixed_precision.set_global_policy("float32")
    tf.config.run_functions_eagerly(False)


def options(strategy, feature):
    chosen = FEATURES[feature]
    return [
        *STRATEGIES[strategy],
        *chosen,
        *(() if "model=softmax" in chosen else ("model.width=4",)),
    ]


def engine(run_dir, *overrides):
    return recipe(run_dir, *overrides, *SHORT)


@functools.cache
def model_of(target):
    return instantiate(json.loads(target), "model", (8, 8, 1), 10)


def refusal(experiment, *, cluster=None, models=()):
    """Return the problems that `check` finds."""
    cluster = cluster or Cluster()
    strategy, _ = select.select_strategy(experiment).resolve(cluster)
    try:
        compatibility.check(experiment, strategy, cluster, models)
    except ConfigError as error:
        return list(error.problems)
    return []


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize(("name", "feature"), WITHOUT_THE_CHECK)
def test_refused_combinations_fail_without_the_check(tmp_path, monkeypatch, name, feature):
    monkeypatch.setattr(compatibility, "check", lambda *args: None)
    with pytest.raises(
        (ValueError, RuntimeError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
    ) as caught:
        engine(tmp_path, *options(name, feature)).train(lambda: False)
    assert not isinstance(caught.value, ConfigError)


KERAS_3 = ["model=softmax", "~model.l2", "model._target_=tests.support.keras3_models.conv_net"]
ONLY_TF_KERAS = {
    "central_storage": [["jit=true"], ["precision=mixed_float16"]],
    "parameter_server": [
        ["jit=true"],
        ["precision=mixed_float16"],
        ["precision=mixed_bfloat16", "strategy.partitioner=min_size"],
    ],
}


@pytest.mark.parametrize("name", ONLY_TF_KERAS)
def test_what_only_tf_keras_cannot_do_is_allowed_for_keras_3(name):
    own = Keras3Model(keras3_models.conv_net((8, 8, 1), 10))
    other = toy_models.normalized((8, 8, 1), 10)
    for overrides in ONLY_TF_KERAS[name]:
        experiment = compose([*STRATEGIES[name], *KERAS_3, *overrides])
        assert refusal(experiment) == [], "known once the model is built"
        assert refusal(experiment, models=[own]) == []
        assert refusal(experiment, models=[own, other]), "one of them is of tf_keras"


def test_xla_compiles_one_model_of_keras_3_on_central_storage():
    models = [Keras3Model(keras3_models.conv_net((8, 8, 1), 10)) for _ in range(2)]
    experiment = compose([*STRATEGIES["central_storage"], *KERAS_3, "jit=true"])
    assert refusal(experiment, models=models[:1]) == []
    (problem,) = refusal(experiment, models=models)
    assert problem.startswith("jit (true) cannot be used with strategy=central_storage: ")


def test_max_pooling_of_keras_3_is_found():
    model = Keras3Model(keras.Sequential([keras.Input((8, 8, 1)), keras.layers.MaxPooling2D()]))
    experiment = compose([*KERAS_3, "jit=true", "deterministic=true"])
    (problem,) = refusal(experiment, models=[model])
    assert problem.startswith("jit (true) and deterministic (true) cannot be used with max pooling")


@pytest.mark.parametrize("option", ["accumulate", "shards"])
def test_synchronized_normalization_of_either_keras_takes_one_pass(option):
    experiment = compose([f"batch.{option}=2"])
    keras3 = Keras3Model(keras3_models.conv_net((8, 8, 1), 10, synchronized=True))
    for model in (toy_models.smooth((8, 8, 1), 10, batch_norm=True), keras3):
        (problem,) = refusal(experiment, models=[model])
        assert problem.startswith(f"batch.{option} (2) cannot be used with synchronized")


@pytest.mark.parametrize("optimizer", ["lars", "muon"])
def test_optimizers_of_whole_layers_exclude_partitioned_variables(optimizer):
    partitioned = ["strategy=parameter_server", "strategy.partitioner=min_size"]
    (problem,) = refusal(compose([*partitioned, f"optimizer={optimizer}"]))
    assert "an update depends on the whole layer" in problem


def test_worker_checks_the_strategy_that_auto_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, "strategy=auto", "jit=true", "model.batch_norm=true")
    (problem,) = caught.value.problems
    assert problem.startswith("jit (true) cannot be used with strategy=auto (Mirrored): replicas")


@pytest.mark.parametrize("name", [*STRATEGIES, "tpu"])
def test_defaults_are_allowed_under_every_strategy(name):
    assert refusal(compose([f"strategy={name}"])) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_features_are_refused_or_allowed(name):
    refused = set()
    for feature in FEATURES:
        experiment = compose(options(name, feature))
        if refusal(experiment, models=[model_of(json.dumps(experiment.model))]):
            refused.add(feature)
    assert refused == REFUSED[name]


CONV_NET = "tests.support.keras3_models.conv_net"


@pytest.mark.parametrize(
    ("command", "may_be"),
    [
        ("model=softmax", False),
        ("model=softmax ~model.l2 model._target_=tensorflow.keras.applications.MobileNetV2", False),
        (f"model=softmax ~model.l2 model._target_={CONV_NET}", True),
        (
            "experiment=gan_digits ~task.discriminator.width "
            f"task.discriminator._target_={CONV_NET}",
            True,
        ),
    ],
)
def test_models_that_may_be_of_keras3_are_known_by_their_source(command, may_be):
    assert compatibility.may_be_keras3(compose(command.split())) is may_be
