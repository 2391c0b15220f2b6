"""Every feature under every strategy: refused with a reason, or trained."""

import functools
import importlib
import json
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tensorflow_config
from tf_keras.src.mixed_precision import autocast_variable

from tests.support import keras3_models, toy_models
from tests.support.command_line import run_apart, run_here
from tests.support.processes import ROOT, only_run, run
from tests.support.training import recipe, variables
from trainer.cli.compose import Composer, compose
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.instantiate import instantiate
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.errors import ConfigError
from trainer.strategies import compatibility, devices, select
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.strategy import Strategy

STRATEGIES = {
    "one_device": ["strategy=one_device"],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=2"],
    "multi_worker": ["strategy=multi_worker"],
    "parameter_server": ["strategy=parameter_server"],
    "tpu": ["strategy=tpu", "strategy.name=grpc://10.0.0.1:8470"],
}
IN_PROCESS = ("one_device", "mirrored", "central_storage")
"""The strategies that are tested inside this process."""

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
    "files": [
        "dataset=image_folder", "dataset.path={images}", "dataset.image_size=[8,8]",
        "dataset.channels=1",
    ],
    "inline": ["launch=inline"],
    "eager": ["eager=true"],
    "skip": ["divergence.action=skip"],
    "shards": ["batch.shards=4", "batch.accumulate=2", *LOCAL_NORM],
    "jit, shards": ["batch.shards=4", "jit=true", "model.dropout=0.3"],
    "histograms, images": ["summary.histograms=2", "summary.images=2", "model.batch_norm=true"],
    "slow steps": ["fault=slow_worker"],
}  # fmt: skip

NO_LOSS_SCALE = (
    "precision (mixed_float16) cannot be used with strategy={}: tf_keras scales no loss there, and "
    "float16 gradients would vanish; "
    "add precision=mixed_bfloat16 or precision=float32"
)
NO_JIT = (
    "jit (true) cannot be used with strategy={}: XLA compiles only what has its variables on the "
    "device that computes, and there they "
    "are on another; add jit=false"
)
UNORDERED = (
    "deterministic (true) cannot be used with strategy={}: workers update the variables in no "
    "fixed order, so that no run repeats; "
    "add deterministic=false"
)
NO_INLINE = (
    "launch.inline (true) cannot be used with strategy={}: it starts several processes, and inline "
    "is one; "
    "add launch.inline=false or strategy=one_device"
)
NO_PIECES = (
    "precision (mixed_bfloat16) and strategy.partitioner (min_size) cannot be used with "
    "strategy=parameter_server: tf_keras cannot cast a "
    "variable that is in pieces; add precision=float32 or strategy.partitioner=none"
)
JIT_NORM = (
    "jit (true) cannot be used with strategy={} and synchronized batch normalization: replicas "
    "cannot communicate within what XLA "
    "compiles; add jit=false, or choose a model without it"
)
ACCUMULATED_NORM = (
    "batch.accumulate (2) cannot be used with strategy={} and batch normalization of each "
    "micro-batch: moving statistics that all replicas share cannot be updated within the loop over "
    "micro-batches; add batch.accumulate=1, or choose a model that normalizes over the global batch"
)
POOLED = (
    "jit (true) and deterministic (true) cannot be used with max pooling: XLA has no deterministic "
    "gradient of it; "
    "add jit=false or deterministic=false"
)

NO_EAGER = (
    "eager (true) cannot be used with strategy={}: its steps run on other machines or cores, as "
    "compiled functions; add eager=false, or strategy=one_device to debug the model"
)
NOTHING_COMPILED = (
    "eager (true) and jit (true) cannot be used with each other: XLA compiles a function, and "
    "eager execution has none; add jit=false or eager=false"
)
NO_GLOBAL_BATCH = (
    "batch.shards (4) cannot be used with strategy={}: each of its workers makes updates of its "
    "own batches, so there is no global batch to divide; add batch.shards=null"
)
NO_ORDER = (
    "batch.shards (4) cannot be used with strategy={}: the order of its sums has not been tested "
    "on one; add batch.shards=null"
)
NO_ROUNDING = (
    "batch.shards (4) and strategy.compress (bfloat16) cannot be used with strategy=multi_worker: "
    "what is rounded on its way depends on how many replicas send it; add strategy.compress=none "
    "or batch.shards=null"
)
NO_UNDO = (
    "divergence.action ({}) cannot be used with strategy=parameter_server: other workers have gone "
    "on by the time that a step is "
    "known to be bad; add divergence.action=stop"
)
NO_SPIKES = (
    "divergence.spike_sigma (20.0) cannot be used with strategy=parameter_server: the losses of "
    "its workers have no order; "
    "add divergence.spike_sigma=null"
)
NO_SKIP = (
    "divergence.action (skip) cannot be used with strategy=tpu: replicas cannot leave an update "
    "out together there; "
    "add divergence.action=rollback"
)
NO_REST = (
    "fault (slow_worker) cannot be used with strategy=tpu: what XLA compiles for a TPU cannot "
    "rest; remove the action slow, or rehearse it with strategy=mirrored"
)
NO_NEXT_STEP = (
    "summary.{} (2) cannot be used with strategy=parameter_server: its steps are handed out, and "
    "nobody runs the next one on all "
    "replicas; add summary.{}=null"
)

NO_OVERFLOW = (
    "precision (mixed_float16) cannot be used with strategy={}: replicas cannot leave an update "
    "out together there, as an overflow of float16 needs; add precision=mixed_bfloat16 or "
    "precision=float32"
)

EARLY = {
    **{
        (name, "mixed_float16"): [NO_LOSS_SCALE] for name in ("central_storage", "parameter_server")
    },
    ("tpu", "mixed_float16"): [NO_OVERFLOW],
    **{
        (name, feature): [NO_JIT]
        for name in ("central_storage", "parameter_server")
        for feature in FEATURES
        if "jit" in feature and feature != "jit, normalization"
    },
    **{
        ("parameter_server", feature): [UNORDERED]
        for feature in FEATURES
        if "deterministic" in feature
    },
    **{
        ("parameter_server", feature): [NO_JIT, UNORDERED]
        for feature in FEATURES
        if "deterministic, jit" in feature
    },
    **{(name, "eager"): [NO_EAGER] for name in ("parameter_server", "tpu")},
    ("parameter_server", "shards"): [NO_GLOBAL_BATCH],
    ("parameter_server", "jit, shards"): [NO_JIT, NO_GLOBAL_BATCH],
    **{("tpu", feature): [NO_ORDER] for feature in ("shards", "jit, shards")},
    **{(name, "inline"): [NO_INLINE] for name in ("multi_worker", "parameter_server")},
    ("parameter_server", "skip"): [NO_UNDO.format("skip")],
    ("tpu", "skip"): [NO_SKIP],
    ("tpu", "slow steps"): [NO_REST],
    ("parameter_server", "histograms, images"): [
        NO_NEXT_STEP.format(what, what) for what in ("histograms", "images")
    ],
}
"""What the parent refuses: (strategy, feature) -> the message."""

LATE = {
    **{
        (name, "jit, synchronized normalization"): JIT_NORM for name in ("mirrored", "multi_worker")
    },
    ("central_storage", "accumulation, normalization"): ACCUMULATED_NORM,
    # A function from elsewhere may return a model of Keras 3, for which these rules do not hold.
    **{(name, "jit, normalization"): NO_JIT for name in ("central_storage", "parameter_server")},
    **{
        (name, "deterministic, jit, max pooling"): POOLED
        for name in STRATEGIES
        if (name, "deterministic, jit, max pooling") not in EARLY
    },
}
"""What the worker refuses once the model is built: (strategy, feature) -> the message."""

ALLOWED = [
    (name, feature)
    for name in STRATEGIES
    for feature in FEATURES
    if (name, feature) not in {**EARLY, **LATE}
]


IN_WORKERS = ("multi_worker", "parameter_server")
"""The strategies that are tested in worker processes."""

RUNS = {
    "one_device": {
        (
            "mixed_float16",
            "jit",
            "accumulation",
            "jit, accumulation",
            "jit, synchronized normalization",
            "accumulation, synchronized normalization",
        ): [],
        ("mixed_bfloat16", "deterministic", "synchronized normalization"): [],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        (
            "deterministic, jit",
            "jit, normalization",
            "accumulation, normalization",
            "shards",
        ): [],
        ("mixed_float16", "jit, shards"): [],
        ("eager", "synchronized normalization", "slow steps"): [],
    },
    "mirrored": {
        ("mixed_float16", "jit", "accumulation", "jit, accumulation", "slow steps"): [],
        (
            "mixed_bfloat16",
            "deterministic",
            "synchronized normalization",
            "accumulation, synchronized normalization",
        ): [],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        (
            "deterministic, jit",
            "jit, normalization",
            "accumulation, normalization",
            "shards",
        ): [],
        ("mixed_float16", "jit, shards"): [],
        ("eager", "synchronized normalization"): [],
    },
    "central_storage": {
        ("mixed_bfloat16", "deterministic", "accumulation", "slow steps"): [],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        ("synchronized normalization", "accumulation, synchronized normalization"): [],
        ("shards",): [],
        ("eager", "synchronized normalization"): [],
    },
    "multi_worker": {
        ("mixed_float16", "jit", "accumulation", "jit, accumulation"): [
            "strategy.compress=float16"
        ],
        (
            "mixed_bfloat16",
            "deterministic",
            "synchronized normalization",
            "accumulation, synchronized normalization",
            "slow steps",
        ): ["strategy.compress=bfloat16"],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        (
            "deterministic, jit",
            "jit, normalization",
            "accumulation, normalization",
            "shards",
        ): [],
        ("eager",): [],
        ("mixed_float16", "jit, shards"): [],
    },
    "parameter_server": {
        ("mixed_bfloat16", "accumulation", "accumulation, normalization"): [],
        ("synchronized normalization", "accumulation, synchronized normalization"): [
            "strategy.partitioner=min_size",
            "strategy.shard_bytes=64",
            "strategy.ps=2",
        ],
        ("clipping, averages, best, early stopping", "files", "slow steps"): [],
    },
}
"""What is trained: strategy -> features of one run -> more overrides."""

ONE_OF_EACH_RULE = {
    (name, str(message)): (name, feature)
    for (name, feature), message in reversed({**EARLY, **LATE}.items())
    if name in IN_PROCESS
}
"""What is refused inside this process: the first feature under each strategy and message."""


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of images, two classes."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(48):
        image = tf.cast(
            tf.random.stateless_uniform([8, 8, 1], [number, 0], 0, 255, tf.int32), tf.uint8
        )
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        tf.io.write_file(str(folder / "ab"[number % 2] / f"{number}.png"), tf.io.encode_png(image))
    return folder


@pytest.fixture
def restored_settings():
    """Undo what a run sets for the whole process."""
    yield
    tensorflow_config.disable_op_determinism()
    tf.keras.mixed_precision.set_global_policy("float32")
    tf.config.run_functions_eagerly(False)


def options(strategy, feature, images=ROOT):
    chosen = [item.format(images=images) for item in FEATURES[feature]]
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


def test_parent_refuses_without_tensorflow(tmp_path):
    """All combinations in one process, in which importing TensorFlow fails."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')\n")
    combinations = {
        f"{name}: {feature}": options(name, feature) for name in STRATEGIES for feature in FEATURES
    }
    code = (
        "import json, sys\n"
        "from trainer.strategies import compatibility, select\n"
        "from trainer.cli.compose import Composer\n"
        "from trainer.cluster.spec import Cluster\n"
        "from trainer.errors import ConfigError\n"
        "composer, problems = Composer(None), {}\n"
        "for name, overrides in json.load(sys.stdin).items():\n"
        "    experiment = composer.compose(overrides)\n"
        "    try:\n"
        "        compatibility.check(experiment, select.select_strategy(experiment), Cluster())\n"
        "    except ConfigError as error:\n"
        "        problems[name] = list(error.problems)\n"
        "print(json.dumps(problems))\n"
    )
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT)]}\n{code}",
    ]
    done = subprocess.run(
        command,
        input=json.dumps(combinations),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        f"{name}: {feature}": [line.format(name) for line in lines]
        for (name, feature), lines in EARLY.items()
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_rules_on_layers_apply_once_the_model_is_built(name):
    composer = Composer(None)
    for feature in FEATURES:
        if "image_folder" in str(FEATURES[feature]) or (name, feature) in EARLY:
            continue
        experiment = composer.compose(options(name, feature))
        expected = [LATE[name, feature].format(name)] if (name, feature) in LATE else []
        assert refusal(experiment, models=[model_of(json.dumps(experiment.model))]) == expected, (
            feature
        )


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize(("name", "feature"), [case for case in LATE if case[0] in IN_PROCESS])
def test_worker_refuses_what_depends_on_the_model(tmp_path, name, feature):
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, *options(name, feature))
    assert caught.value.problems == (LATE[name, feature].format(name),)


def run_options(name, features, images):
    """Return the options of several features, for one run."""
    overrides = dict.fromkeys(
        item for feature in features for item in options(name, feature, images)
    )
    return [
        item for item in overrides if item != "model.width=4" or "model=softmax" not in overrides
    ]


def training_runs(names):
    """Return the runs of some strategies: the first of each is slow, the others are long."""
    return [
        pytest.param(name, features, marks=[pytest.mark.long if number else pytest.mark.slow])
        for name in names
        for number, features in enumerate(RUNS[name])
    ]


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize(("name", "features"), training_runs(IN_PROCESS))
def test_allowed_combinations_train(tmp_path, images, name, features):
    training = engine(tmp_path, *run_options(name, features, images))
    before = variables(training)
    assert training.train(lambda: False)
    assert training.step == 3
    assert any(
        before[key].tobytes() != value.tobytes()
        for key, value in variables(training).items()
        if key.startswith("/models")
    )


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize(
    ("name", "feature"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if "jit" in case[1] else [])
        for case in ONE_OF_EACH_RULE.values()
    ],
)
def test_refused_combinations_fail_without_the_check(tmp_path, monkeypatch, name, feature):
    monkeypatch.setattr(compatibility, "check", lambda *args: None)
    with pytest.raises(
        (ValueError, RuntimeError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
    ) as caught:
        engine(tmp_path, *options(name, feature)).train(lambda: False)
    assert not isinstance(caught.value, ConfigError)


@pytest.mark.usefixtures("restored_settings")
def test_eager_execution_would_silently_compile_nothing():
    """So it is refused together with jit."""
    assert refusal(Composer(None).compose(["eager=true", "jit=true"])) == [NOTHING_COMPILED]
    tf.config.run_functions_eagerly(True)
    seen: list[bool] = []
    tf.function(lambda: seen.append(tf.executing_eagerly()), jit_compile=True)()
    assert seen == [True]


def test_inline_multi_worker_silently_has_one_worker():
    strategy = MultiWorker()
    assert strategy.workers == 2
    assert strategy.create(Cluster()).num_replicas_in_sync == 1


def test_inline_is_allowed_for_a_single_process():
    declared = Cluster(
        ProcessId("worker", 0), {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "TF_CONFIG"
    )
    assert refusal(compose(["strategy=multi_worker", "launch=inline"]), cluster=declared) == []
    assert refusal(compose(["strategy=multi_worker", "strategy.workers=1", "launch=inline"])) == []


def test_shards_exclude_compression():
    overrides = ["strategy=multi_worker", "strategy.compress=bfloat16", "batch.shards=4"]
    assert refusal(compose(overrides)) == [NO_ROUNDING]


def test_asynchronous_workers_support_no_rollback_and_no_spikes():
    overrides = [
        "strategy=parameter_server",
        "divergence.action=rollback",
        "divergence.spike_sigma=20",
    ]
    assert refusal(compose(overrides)) == [NO_UNDO.format("rollback"), NO_SPIKES]


def test_partitioned_variables_exclude_mixed_precision():
    overrides = ["strategy=parameter_server", "strategy.partitioner=min_size"]
    assert refusal(compose([*overrides, "precision=mixed_bfloat16"])) == [NO_PIECES]
    assert refusal(compose(overrides)) == []
    pieces = tf.__internal__.distribute.ShardedVariable([tf.Variable([1.0]), tf.Variable([2.0])])
    with pytest.raises(ValueError, match="ShardedVariable"):
        autocast_variable.create_autocast_variable(pieces)


KERAS_3 = ["model=softmax", "~model.l2", "model._target_=tests.support.keras3_models.conv_net"]
ONLY_TF_KERAS = {
    "central_storage": [
        ["jit=true"],
        ["precision=mixed_float16"],
        ["batch.accumulate=2"],
    ],
    "parameter_server": [
        ["jit=true"],
        ["precision=mixed_float16"],
        ["precision=mixed_bfloat16", "strategy.partitioner=min_size"],
    ],
}


@pytest.mark.parametrize("name", ONLY_TF_KERAS)
def test_what_only_tf_keras_cannot_do_is_allowed_for_keras_3(name):
    composer = Composer(None)
    own = Keras3Model(keras3_models.conv_net((8, 8, 1), 10))
    other = toy_models.normalized((8, 8, 1), 10)
    for overrides in ONLY_TF_KERAS[name]:
        experiment = composer.compose([*STRATEGIES[name], *KERAS_3, *overrides])
        assert refusal(experiment) == [], "known once the model is built"
        assert refusal(experiment, models=[own]) == []
        assert refusal(experiment, models=[own, other]), "one of them is of tf_keras"


def test_xla_compiles_one_model_of_keras_3_on_central_storage():
    models = [Keras3Model(keras3_models.conv_net((8, 8, 1), 10)) for _ in range(2)]
    experiment = compose([*STRATEGIES["central_storage"], *KERAS_3, "jit=true"])
    (problem,) = refusal(experiment, models=models)
    assert problem.startswith("jit (true) cannot be used with strategy=central_storage and several")


def test_tpus_refuse_a_loss_scale_for_either_keras():
    experiment = compose([*STRATEGIES["tpu"], *KERAS_3, "precision=mixed_float16"])
    assert refusal(experiment) == [NO_OVERFLOW.format("tpu")]


def test_max_pooling_of_keras_3_is_found():
    model = Keras3Model(keras.Sequential([keras.Input((8, 8, 1)), keras.layers.MaxPooling2D()]))
    experiment = compose([*KERAS_3, "jit=true", "deterministic=true"])
    assert refusal(experiment, models=[model]) == [POOLED]


def test_message_names_the_strategy_that_auto_chose():
    servers = Cluster(
        ProcessId("chief", 0), {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}, "TF_CONFIG"
    )
    assert refusal(compose(["strategy=auto", "jit=true"]), cluster=servers) == [
        NO_JIT.format("auto (ParameterServer)")
    ]


def test_worker_checks_the_strategy_that_auto_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, "strategy=auto", "jit=true", "model.batch_norm=true")
    assert caught.value.problems == (JIT_NORM.format("auto (Mirrored)"),)


def test_message_names_a_custom_strategy_by_its_choice(tmp_path):
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "ours.yaml").write_text(
        "_target_: trainer.strategies.central_storage.CentralStorage\n"
    )
    assert refusal(compose(["strategy=ours", "jit=true"], tmp_path)) == [NO_JIT.format("ours")]


def test_all_problems_are_reported_at_once():
    overrides = ["strategy=central_storage", "jit=true", "precision=mixed_float16"]
    assert refusal(compose(overrides)) == [
        NO_LOSS_SCALE.format("central_storage"),
        NO_JIT.format("central_storage"),
    ]


def test_command_line_exits_with_2_and_leaves_no_files(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    outcome = run_apart("strategy=parameter_server", "jit=true", cwd=work)
    assert (outcome.code, outcome.out, outcome.err) == (
        2,
        "",
        f"error: {NO_JIT.format('parameter_server')}\n",
    )
    monkeypatch.chdir(work)
    outcome = run_here("strategy=multi_worker", "launch=inline")
    assert (outcome.code, outcome.out, outcome.err) == (
        2,
        "",
        f"error: {NO_INLINE.format('multi_worker')}\n",
    )
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("one_device", "device"),
        (
            "mirrored",
            "devices, virtual_devices, cross_device_ops, num_packs, devices_per_replica, placement",
        ),
        ("central_storage", "compute_devices, parameter_device, virtual_devices"),
        ("auto", "workers"),
    ],
)
def test_partitioner_is_an_unknown_key_of_other_strategies(name, known):
    with pytest.raises(ConfigError) as caught:
        compose([f"strategy={name}", "+strategy.partitioner=min_size"])
    assert caught.value.problems == (
        f"unknown key 'strategy.partitioner'; known keys of strategy: {known}",
    )


def test_strategies_and_rules_have_the_same_names():
    for path in (ROOT / "trainer" / "strategies").glob("*.py"):
        importlib.import_module(f"trainer.strategies.{path.stem}")
    names = set()
    waiting = [Strategy]
    while waiting:
        kind = waiting.pop()
        names |= kind.unsupported
        waiting += kind.__subclasses__()
    rules = [rule.name for rule in compatibility.RULES if rule.name]
    assert len(rules) == len(set(rules))
    assert names == set(rules)


@pytest.mark.parametrize(("name", "features"), training_runs(IN_WORKERS))
def test_allowed_combinations_train_in_worker_processes(tmp_path, images, name, features):
    code, out, err = run(
        tmp_path, *run_options(name, features, images), *RUNS[name][features], *SHORT
    )
    assert code == 0, out + err
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["step"] == 3


def test_every_allowed_combination_is_trained():
    trained = {
        (name, feature) for name, runs in RUNS.items() for features in runs for feature in features
    }
    # Inside this process every run is inline.
    assert trained | {(name, "inline") for name in IN_PROCESS} == {
        case for case in ALLOWED if case[0] in RUNS
    }
