"""What cannot be combined is refused with its reason; what can be is trained: every feature under every strategy."""

import functools
import importlib
import json
import subprocess
import sys

import pytest
import tensorflow as tf
from command_line import run_apart, run_here
from tensorflow.python.framework import config as tensorflow_config
from tf_keras.src.mixed_precision import autocast_variable

from tests.processes import ROOT, only_run, run
from tests.training import variables
from trainer import build, refusals
from trainer.channel import Channel
from trainer.cli import compose
from trainer.cluster import Cluster, Task
from trainer.composition import Composer
from trainer.compression import Compressed
from trainer.errors import ConfigError
from trainer.instantiation import instantiate
from trainer.state import replicated
from trainer.strategies import devices
from trainer.strategies.base import Strategy
from trainer.strategies.multi_worker import MultiWorker

STRATEGIES = {
    "one_device": ["strategy=one_device"],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=2"],
    "multi_worker": ["strategy=multi_worker"],
    "parameter_server": ["strategy=parameter_server"],
    "tpu": ["strategy=tpu", "strategy.name=grpc://10.0.0.1:8470"],
}
HERE = ("one_device", "mirrored", "central_storage")
"""The strategies that can be tried inside this process."""

LOCAL_NORM = ["model=softmax", "model._target_=tests.toy_models.normalised"]
SHORT = ["train.steps=3", "batch.global_size=16", "restart.max_restarts=0"]
FEATURES = {
    "mixed_float16": ["precision=mixed_float16"],
    "mixed_bfloat16": ["precision=mixed_bfloat16"],
    "jit": ["jit=true"],
    "accumulation": ["batch.accumulate=2"],
    "synchronised normalisation": ["model.batch_norm=true"],
    "jit, synchronised normalisation": ["jit=true", "model.batch_norm=true"],
    "accumulation, synchronised normalisation": ["batch.accumulate=2", "model.batch_norm=true"],
    "jit, accumulation": ["jit=true", "batch.accumulate=2"],
    "jit, normalisation": ["jit=true", *LOCAL_NORM],
    "accumulation, normalisation": ["batch.accumulate=2", *LOCAL_NORM],
    "deterministic": ["deterministic=true", "dataset.crop=1"],
    "deterministic, jit": ["deterministic=true", "jit=true", "model=softmax"],
    "deterministic, jit, max pooling": ["deterministic=true", "jit=true"],
    "clipping, averages, best, early stopping": [
        "train.clip_norm=0.05", "train.ema_decay=0.9", "checkpoint.best.metric=accuracy", "evaluate.every_steps=1",
        "callbacks=early_stopping",
    ],
    "files": ["dataset=image_folder", "dataset.path={images}", "dataset.image_size=[8,8]", "dataset.channels=1"],
    "inline": ["launch=inline"],
    "skip": ["divergence.action=skip"],
    "histograms, images": ["summary.histograms=2", "summary.images=2", "model.batch_norm=true"],
}  # fmt: skip

NO_LOSS_SCALE = (
    "precision (mixed_float16) cannot be used with strategy={}: tf_keras scales no loss there, and float16 gradients would vanish; "
    "add precision=mixed_bfloat16 or precision=float32"
)
NO_JIT = (
    "jit (true) cannot be used with strategy={}: XLA compiles only what has its variables on the device that computes, and there they "
    "are on another; add jit=false"
)
UNORDERED = (
    "deterministic (true) cannot be used with strategy={}: workers update the variables in no fixed order, so that no run repeats; "
    "add deterministic=false"
)
NO_INLINE = (
    "launch.inline (true) cannot be used with strategy={}: it starts several processes, and inline is one; "
    "add launch.inline=false or strategy=one_device"
)
NO_COMPRESSION = (
    "precision (mixed_float16) and strategy.compress ({}) cannot be used with strategy=multi_worker: the loss scale must see each "
    "overflow of a gradient, which compression may hide; add strategy.compress=none or precision=mixed_bfloat16"
)
NO_PIECES = (
    "precision (mixed_bfloat16) and strategy.partitioner (min_size) cannot be used with strategy=parameter_server: tf_keras cannot cast a "
    "variable that is in pieces; add precision=float32 or strategy.partitioner=none"
)
JIT_NORM = (
    "jit (true) cannot be used with strategy={} and synchronised batch normalisation: replicas cannot communicate within what XLA "
    "compiles; add jit=false, or choose a model without it"
)
ACCUMULATED_SYNC = (
    "batch.accumulate (2) cannot be used with strategy={} and synchronised batch normalisation: replicas cannot communicate within the "
    "loop over micro-batches; add batch.accumulate=1, or choose a model without it"
)
ACCUMULATED_NORM = (
    "batch.accumulate (2) cannot be used with strategy={} and batch normalisation: moving statistics that all replicas share cannot be "
    "updated within the loop over micro-batches; add batch.accumulate=1, or choose a model without it"
)
POOLED = (
    "jit (true) and deterministic (true) cannot be used with max pooling: XLA has no deterministic gradient of it; "
    "add jit=false or deterministic=false"
)

NO_UNDO = (
    "divergence.action ({}) cannot be used with strategy=parameter_server: other workers have gone on by the time that a step is "
    "known to be bad; add divergence.action=stop"
)
NO_SPIKES = (
    "divergence.spike_sigma (20.0) cannot be used with strategy=parameter_server: the losses of its workers have no order; "
    "add divergence.spike_sigma=null"
)
NO_SKIP = (
    "divergence.action (skip) cannot be used with strategy=tpu: replicas cannot leave an update out together there; "
    "add divergence.action=rollback"
)
NO_NEXT_STEP = (
    "summary.{} (2) cannot be used with strategy=parameter_server: its steps are handed out, and nobody runs the next one on all "
    "replicas; add summary.{}=null"
)

EARLY = {
    **{(name, "mixed_float16"): [NO_LOSS_SCALE] for name in ("central_storage", "parameter_server", "tpu")},
    **{(name, feature): [NO_JIT] for name in ("central_storage", "parameter_server") for feature in FEATURES if "jit" in feature},
    **{("parameter_server", feature): [UNORDERED] for feature in FEATURES if "deterministic" in feature},
    **{("parameter_server", feature): [NO_JIT, UNORDERED] for feature in FEATURES if "deterministic, jit" in feature},
    **{(name, "inline"): [NO_INLINE] for name in ("multi_worker", "parameter_server")},
    ("parameter_server", "skip"): [NO_UNDO.format("skip")],
    ("tpu", "skip"): [NO_SKIP],
    ("parameter_server", "histograms, images"): [NO_NEXT_STEP.format(what, what) for what in ("histograms", "images")],
}
"""What the parent refuses: (strategy, feature) -> the message."""

LATE = {
    **{(name, "jit, synchronised normalisation"): JIT_NORM for name in ("mirrored", "multi_worker")},
    **{(name, "accumulation, synchronised normalisation"): ACCUMULATED_SYNC for name in ("mirrored", "multi_worker", "parameter_server")},
    **{
        ("central_storage", feature): ACCUMULATED_NORM
        for feature in ("accumulation, synchronised normalisation", "accumulation, normalisation")
    },
    **{(name, "deterministic, jit, max pooling"): POOLED for name in STRATEGIES if (name, "deterministic, jit, max pooling") not in EARLY},
}
"""What is refused when the model is there; nothing that is refused early comes so far."""

ALLOWED = [(name, feature) for name in STRATEGIES for feature in FEATURES if (name, feature) not in {**EARLY, **LATE}]


APART = ("multi_worker", "parameter_server")
"""The strategies that are tried in real processes."""

TOGETHER = {
    "one_device": {
        ("mixed_float16", "jit", "accumulation", "jit, accumulation"): [],
        ("mixed_bfloat16", "deterministic", "synchronised normalisation"): [],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        ("jit, synchronised normalisation", "accumulation, synchronised normalisation"): [],
        ("jit, normalisation", "accumulation, normalisation"): [],
        ("deterministic, jit",): [],
    },
    "mirrored": {
        ("mixed_float16", "jit", "accumulation", "jit, accumulation"): [],
        ("mixed_bfloat16", "deterministic", "synchronised normalisation"): [],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        ("jit, normalisation", "accumulation, normalisation"): [],
        ("deterministic, jit",): [],
    },
    "central_storage": {
        ("mixed_bfloat16", "deterministic", "accumulation"): [],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        ("synchronised normalisation",): [],
    },
    "multi_worker": {
        ("mixed_float16", "jit", "accumulation", "jit, accumulation"): [],
        ("mixed_bfloat16", "deterministic", "synchronised normalisation"): ["strategy.compress=bfloat16"],
        ("clipping, averages, best, early stopping", "files", "histograms, images", "skip"): [],
        ("jit, normalisation", "accumulation, normalisation"): [],
        ("deterministic, jit",): [],
    },
    "parameter_server": {
        ("mixed_bfloat16", "accumulation", "accumulation, normalisation"): [],
        ("synchronised normalisation",): ["strategy.partitioner=min_size", "strategy.shard_bytes=64", "strategy.ps=2"],
        ("clipping, averages, best, early stopping", "files"): [],
    },
}
"""What is trained: by strategy the features of one run, and what else it is given."""


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of images, two classes."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(48):
        image = tf.cast(tf.random.stateless_uniform([8, 8, 1], [number, 0], 0, 255, tf.int32), tf.uint8)
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        tf.io.write_file(str(folder / "ab"[number % 2] / f"{number}.png"), tf.io.encode_png(image))
    return folder


@pytest.fixture
def as_before():
    """Takes back what a run sets for the whole process."""
    yield
    tensorflow_config.disable_op_determinism()
    tf.keras.mixed_precision.set_global_policy("float32")


def options(strategy, feature, images=ROOT):
    chosen = [item.format(images=images) for item in FEATURES[feature]]
    return [*STRATEGIES[strategy], *chosen, *(() if "model=softmax" in chosen else ("model.width=4",))]


def engine(run_dir, *overrides):
    return build.engine(compose([*overrides, *SHORT]), run_dir, Channel(lambda message: None))


@functools.cache
def model_of(target):
    return instantiate(json.loads(target), "model", (8, 8, 1), 10)


def refusal(experiment, *, cluster=None, models=()):
    """Gives what `check` says of an experiment."""
    cluster = cluster or Cluster()
    how, _ = build.strategy_of(experiment).resolve(cluster)
    try:
        refusals.check(experiment, how, cluster, models)
    except ConfigError as error:
        return list(error.problems)
    return []


def test_the_parent_refuses_what_it_can_without_tensorflow(tmp_path):
    """All combinations in one process, in which importing TensorFlow fails."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')\n")
    combinations = {f"{name}: {feature}": options(name, feature) for name in STRATEGIES for feature in FEATURES}
    code = (
        "import json, sys\n"
        "from trainer import build, refusals\n"
        "from trainer.composition import Composer\n"
        "from trainer.cluster import Cluster\n"
        "from trainer.errors import ConfigError\n"
        "composer, found = Composer(None), {}\n"
        "for name, overrides in json.load(sys.stdin).items():\n"
        "    experiment = composer.compose(overrides)\n"
        "    try:\n"
        "        refusals.check(experiment, build.strategy_of(experiment), Cluster())\n"
        "    except ConfigError as error:\n"
        "        found[name] = list(error.problems)\n"
        "print(json.dumps(found))\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT)]}\n{code}"]
    done = subprocess.run(command, input=json.dumps(combinations), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        f"{name}: {feature}": [line.format(name) for line in lines] for (name, feature), lines in EARLY.items()
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_depends_on_the_model_is_refused_when_it_is_there(name):
    composer = Composer(None)
    for feature in FEATURES:
        if "image_folder" in str(FEATURES[feature]) or (name, feature) in EARLY:
            continue
        experiment = composer.compose(options(name, feature))
        expected = [LATE[name, feature].format(name)] if (name, feature) in LATE else []
        assert refusal(experiment, models=[model_of(json.dumps(experiment.model))]) == expected, feature


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(("name", "feature"), [case for case in LATE if case[0] in HERE])
def test_the_worker_refuses_too(tmp_path, name, feature):
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, *options(name, feature))
    assert caught.value.problems == (LATE[name, feature].format(name),)


def together(name, features, images):
    """Gives the options of several features, for one run."""
    given = dict.fromkeys(item for feature in features for item in options(name, feature, images))
    return [item for item in given if item != "model.width=4" or "model=softmax" not in given]


@pytest.mark.usefixtures("as_before")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "features"), [(name, features) for name in HERE for features in TOGETHER[name]])
def test_what_is_allowed_trains(tmp_path, images, name, features):
    made = engine(tmp_path, *together(name, features, images))
    before = variables(made)
    assert made.train(lambda: False)
    assert made.step == 3
    assert any(before[key].tobytes() != value.tobytes() for key, value in variables(made).items() if key.startswith("/models"))


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(
    ("name", "feature"),
    [pytest.param(*case, marks=[pytest.mark.slow] if "jit" in case[1] else []) for case in {**EARLY, **LATE} if case[0] in HERE],
)
def test_what_is_refused_would_fail(tmp_path, monkeypatch, name, feature):
    monkeypatch.setattr(refusals, "check", lambda *args: None)
    with pytest.raises((ValueError, RuntimeError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)) as caught:
        engine(tmp_path, *options(name, feature)).train(lambda: False)
    assert not isinstance(caught.value, ConfigError)


def test_compression_would_hide_an_overflow():
    """float16 cuts off what is too large: an infinite gradient becomes a finite one, and would be applied."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())
    with strategy.scope():
        peak = replicated(tf.constant(0.0), "peak")
    compressed = Compressed(tf.float16, peak)

    @tf.function(autograph=False)
    def summed():
        return strategy.run(lambda: compressed(tf.distribute.get_replica_context(), [tf.constant([float("inf"), 1.0])], [])[0][0])

    assert tf.reduce_all(tf.math.is_finite(strategy.experimental_local_results(summed())[0]))


def test_inline_would_train_with_one_worker_and_not_say_so():
    how = MultiWorker()
    assert how.workers == 2
    assert how.start(Cluster()).num_replicas_in_sync == 1


def test_inline_is_allowed_where_this_process_is_all_that_is_to_start():
    declared = Cluster(Task("worker", 0), {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "TF_CONFIG")
    assert refusal(compose(["strategy=multi_worker", "launch=inline"]), cluster=declared) == []
    assert refusal(compose(["strategy=multi_worker", "strategy.workers=1", "launch=inline"])) == []


def test_workers_that_do_not_wait_for_each_other_neither_go_back_nor_know_a_spike():
    given = ["strategy=parameter_server", "divergence.action=rollback", "divergence.spike_sigma=20"]
    assert refusal(compose(given)) == [NO_UNDO.format("rollback"), NO_SPIKES]


@pytest.mark.parametrize("compress", ["bfloat16", "float16"])
def test_compression_and_a_loss_scale_exclude_each_other(compress):
    given = ["strategy=multi_worker", f"strategy.compress={compress}"]
    assert refusal(compose([*given, "precision=mixed_float16"])) == [NO_COMPRESSION.format(compress)]
    assert refusal(compose([*given, "precision=mixed_bfloat16"])) == []


def test_a_split_variable_and_mixed_precision_exclude_each_other():
    given = ["strategy=parameter_server", "strategy.partitioner=min_size"]
    assert refusal(compose([*given, "precision=mixed_bfloat16"])) == [NO_PIECES]
    assert refusal(compose(given)) == []
    pieces = tf.__internal__.distribute.ShardedVariable([tf.Variable([1.0]), tf.Variable([2.0])])
    with pytest.raises(ValueError, match="ShardedVariable"):
        autocast_variable.create_autocast_variable(pieces)


def test_the_strategy_that_auto_chose_is_named():
    servers = Cluster(Task("chief", 0), {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}, "TF_CONFIG")
    assert refusal(compose(["strategy=auto", "jit=true"]), cluster=servers) == [NO_JIT.format("auto (ParameterServer)")]


def test_what_auto_chooses_in_the_worker_is_checked_there(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, "strategy=auto", "jit=true", "model.batch_norm=true")
    assert caught.value.problems == (JIT_NORM.format("auto (Mirrored)"),)


def test_a_strategy_of_ones_own_is_named_as_its_choice(tmp_path):
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "ours.yaml").write_text("_target_: trainer.strategies.central_storage.CentralStorage\n")
    assert refusal(compose(["strategy=ours", "jit=true"], tmp_path)) == [NO_JIT.format("ours")]


def test_all_refusals_are_told_at_once():
    given = ["strategy=central_storage", "jit=true", "precision=mixed_float16"]
    assert refusal(compose(given)) == [NO_LOSS_SCALE.format("central_storage"), NO_JIT.format("central_storage")]


def test_the_command_line_leaves_with_2_and_without_a_trace(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    told = run_apart("strategy=parameter_server", "jit=true", cwd=work)
    assert (told.code, told.out, told.err) == (2, "", f"error: {NO_JIT.format('parameter_server')}\n")
    monkeypatch.chdir(work)
    told = run_here("strategy=multi_worker", "launch=inline")
    assert (told.code, told.out, told.err) == (2, "", f"error: {NO_INLINE.format('multi_worker')}\n")
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("one_device", "device"),
        ("mirrored", "devices, virtual_devices, cross_device_ops, num_packs"),
        ("central_storage", "compute_devices, parameter_device, virtual_devices"),
        ("auto", "workers"),
    ],
)
def test_a_partitioner_without_parameter_servers_is_an_unknown_key(name, known):
    with pytest.raises(ConfigError) as caught:
        compose([f"strategy={name}", "+strategy.partitioner=min_size"])
    assert caught.value.problems == (f"unknown key 'strategy.partitioner'; known keys of strategy: {known}",)


def test_strategies_and_table_name_the_same_rows():
    for path in (ROOT / "trainer" / "strategies").glob("*.py"):
        importlib.import_module(f"trainer.strategies.{path.stem}")
    named, waiting = set(), [Strategy]
    while waiting:
        kind = waiting.pop()
        named |= kind.cannot
        waiting += kind.__subclasses__()
    rows = [row.name for row in refusals.TABLE if row.name]
    assert len(rows) == len(set(rows))
    assert named == set(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "features"), [(name, features) for name in APART for features in TOGETHER[name]])
def test_what_is_allowed_trains_in_real_processes(tmp_path, images, name, features):
    code, out, err = run(tmp_path, *together(name, features, images), *TOGETHER[name][features], *SHORT)
    assert code == 0, out + err
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["step"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_several_processes_refuse_with_one_voice(tmp_path, name):
    feature = "accumulation, synchronised normalisation"
    code, out, err = run(tmp_path, *options(name, feature))
    assert (code, err.splitlines()[0], err.count("error: ")) == (2, f"error: {LATE[name, feature].format(name)}", 1), out
    assert list((tmp_path / "runs").iterdir() if (tmp_path / "runs").exists() else []) == []


def test_all_that_is_allowed_is_trained():
    tried = {(name, feature) for name, runs in TOGETHER.items() for features in runs for feature in features}
    # Without a process of its own is how this process trains them.
    assert tried | {(name, "inline") for name in HERE} == {case for case in ALLOWED if case[0] in TOGETHER}
