import re
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compat import v2 as tensorflow_of_keras

from tests.training import engine
from trainer import cluster, randomness
from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.input import Pipeline
from trainer.strategies.tpu import Tpu

pytestmark = pytest.mark.usefixtures("no_tpu")


class Resolver:
    """Stands for a TPU; its tasks listen at `addresses`."""

    addresses: tuple[str, ...] = ()

    def __init__(self, calls, **given):
        calls.append(("resolve", given))

    def cluster_spec(self):
        return tf.train.ClusterSpec({"worker": list(self.addresses)} if self.addresses else {})


@pytest.fixture
def calls(monkeypatch):
    """What TensorFlow was asked to do with a TPU, in order."""
    seen = []
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda **given: Resolver(seen, **given))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: seen.append("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda resolver: seen.append("initialize"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: seen.append("strategy") or SimpleNamespace(resolver=resolver))
    return seen


def test_the_tpu_is_wiped_before_anything_is_put_there(calls):
    strategy = Tpu(name="tpu-7", zone="here", project="mine").start(Cluster())
    assert calls == [("resolve", {"tpu": "tpu-7", "zone": "here", "project": "mine"}), "connect", "initialize", "strategy"]
    assert isinstance(strategy.resolver, Resolver)


@pytest.mark.parametrize(
    ("environment", "files", "name"),
    [
        ({"TPU_NAME": "mine"}, {}, "mine"),
        ({"TPU_NAME": "mine", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://a:1"}, {}, "grpc://a:1"),
        ({"TPU_NAME": ""}, {"/dev/accel[0-9]*": ["/dev/accel0"]}, "local"),
        ({}, {"/dev/vfio/[0-9]*": ["/dev/vfio/0"]}, "local"),
    ],
)
def test_without_a_name_it_is_the_tpu_that_is_declared(calls, monkeypatch, environment, files, name):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(cluster, "glob", lambda pattern: files.get(pattern, []))
    Tpu().check(Cluster())
    Tpu().start(Cluster())
    assert calls[0] == ("resolve", {"tpu": name, "zone": None, "project": None})


def test_the_parent_says_what_it_looked_for():
    with pytest.raises(ConfigError) as raised:
        Tpu().check(Cluster())
    (problem,) = raised.value.problems
    assert re.fullmatch(
        r"strategy.name \(null\) must be set, .* neither TPU_NAME nor KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS .* no /dev/accel\* or /dev/vfio/\*; "
        r"add strategy.name=<name or grpc:// address>",
        problem,
    )
    Tpu(name="any").check(Cluster())


def test_it_connects_to_tasks_that_listen(calls, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        monkeypatch.setattr(Resolver, "addresses", tuple(f"127.0.0.1:{server.getsockname()[1]}" for server in (one, two)))
        Tpu(name="pod").start(Cluster())
        for server in (one, two):
            server.settimeout(5)
            server.accept()[0].close()
    assert calls[-1] == "strategy"


def test_a_task_that_does_not_listen_is_one_line(calls, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(Resolver, "addresses", (address,))
    with pytest.raises(ConfigError, match=r"^strategy.name \(pod\): there is no TPU that can be used: .*Connection refused"):
        Tpu(name="pod").start(Cluster())
    assert len(calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Please provide a TPU Name to connect to."),
        RuntimeError("Missing runtime dependency on the Google API client."),
        tf.errors.NotFoundError(None, None, "TPUs not found in the cluster.\nRegistered devices: [CPU]"),
    ],
)
def test_an_error_of_tensorflows_is_one_line(calls, monkeypatch, error):
    def fail(resolver):
        raise error

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    with pytest.raises(ConfigError) as raised:
        Tpu(name="mine").start(Cluster())
    assert raised.value.problems == (f"strategy.name (mine): there is no TPU that can be used: {str(error).splitlines()[0]}",)
    assert "strategy" not in calls


def test_a_machine_without_a_tpu_is_one_line():
    with pytest.raises(ConfigError, match=r"^strategy.name \(local\): there is no TPU that can be used: TPUs not found in .*$"):
        Tpu(name="local").start(Cluster())


def test_what_it_says_of_itself():
    assert Tpu().num_replicas() is None
    assert Tpu.input_outside
    assert "loss_scaling" in Tpu.cannot


def losses(run_dir, *options, compiled):
    """Gives the losses of some steps, with the input outside the step, as on a TPU; the step whole in one XLA program, or not."""
    made = engine(run_dir, "optimizer=sgd", "optimizer.learning_rate=0.05", *options)
    loop = made.loop
    loop.feed = Pipeline(loop.feed.source, loop.strategy)
    opened = loop.feed.start(0)

    @tf.function(jit_compile=compiled, autograph=False)
    def step(index, taken):
        return loop.strategy.run(loop._replica_step, args=(index, taken))

    sums = [step(tf.constant(index, tf.int64), loop.feed.take(opened)).numpy() for index in range(4)]
    return np.array([total[0] / total[1] for total in sums])


@pytest.fixture
def same_bits_everywhere(monkeypatch):
    """Draws what is random in a model by plain integer arithmetic: XLA's own generators give other bits than TensorFlow's kernels."""

    def fold_in(seed, data):
        return tf.cast(seed, tf.int64) * 1000003 + tf.cast(data, tf.int64)

    def dropout(x, rate, seed, noise_shape):
        drawn = randomness.uniform(0, seed[:1], seed[1:], x.shape.num_elements())
        return tf.where(tf.reshape(drawn, x.shape) < rate, 0.0, x / (1.0 - rate))

    monkeypatch.setattr(tf.random.experimental, "stateless_fold_in", fold_in)
    monkeypatch.setattr(tensorflow_of_keras.nn.experimental, "stateless_dropout", dropout)


WHOLE = ["model.dropout=0.3", "model.batch_norm=true", "train.clip_norm=0.1", "train.ema_decay=0.9"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [WHOLE, [*WHOLE, "batch.accumulate=2"]], ids=["whole", "accumulated"])
def test_the_step_is_one_xla_program_with_the_same_losses(tmp_path, same_bits_everywhere, options):
    plain = losses(tmp_path / "plain", *options, compiled=False)
    np.testing.assert_allclose(losses(tmp_path / "compiled", *options, compiled=True), plain, atol=1e-5)
    assert np.abs(plain - losses(tmp_path / "without", *options, "model.dropout=0", compiled=False)).max() > 1e-3


@pytest.mark.slow
def test_real_dropout_compiles(tmp_path):
    assert np.isfinite(losses(tmp_path, "model.dropout=0.3", compiled=True)).all()
