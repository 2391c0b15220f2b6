import math
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.marks import first_only
from tests.support.training import ROUNDING, engine
from trainer.cluster import environment as environment_module
from trainer.cluster.spec import Cluster
from trainer.engine.graph.input.feed import Pipeline
from trainer.engine.graph.randomness import draws, randomness
from trainer.errors import ConfigError
from trainer.strategies.tpu import Tpu

pytestmark = pytest.mark.usefixtures("no_tpu")


class Resolver:
    """The resolver of a fake TPU, whose tasks listen at `addresses`."""

    addresses: tuple[str, ...] = ()

    def __init__(self, calls, **options):
        calls.append(("resolve", options))

    def cluster_spec(self):
        return tf.train.ClusterSpec({"worker": list(self.addresses)} if self.addresses else {})


@pytest.fixture
def calls(monkeypatch):
    """The calls that concern the TPU, in order."""
    seen = []
    monkeypatch.setattr(
        tf.distribute.cluster_resolver,
        "TPUClusterResolver",
        lambda **options: Resolver(seen, **options),
    )
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", lambda resolver: seen.append("connect")
    )
    monkeypatch.setattr(
        tf.tpu.experimental, "initialize_tpu_system", lambda resolver: seen.append("initialize")
    )
    monkeypatch.setattr(
        tf.distribute,
        "TPUStrategy",
        lambda resolver: seen.append("strategy") or SimpleNamespace(resolver=resolver),
    )
    return seen


def test_tpu_is_initialized_before_the_strategy_is_created(calls):
    strategy = Tpu(name="tpu-7", zone="here", project="mine").create(Cluster())
    assert calls == [
        ("resolve", {"tpu": "tpu-7", "zone": "here", "project": "mine"}),
        "connect",
        "initialize",
        "strategy",
    ]
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
def test_declared_tpu_is_the_default(calls, monkeypatch, environment, files, name):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(environment_module, "glob", lambda pattern: files.get(pattern, []))
    Tpu().check_devices()
    Tpu().create(Cluster())
    assert calls[0] == ("resolve", {"tpu": name, "zone": None, "project": None})


def test_check_names_every_place_it_looked_at():
    with pytest.raises(
        ConfigError, match=r"^strategy.name \(null\) must be set, .* TPU_NAME .*; add"
    ):
        Tpu().check_devices()
    Tpu(name="any").check_devices()


def test_create_refuses_an_unreachable_task_in_one_line(calls, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(Resolver, "addresses", (address,))
    with pytest.raises(
        ConfigError,
        match=r"^strategy.name \(pod\): there is no TPU that can be used: .*Connection refused",
    ):
        Tpu(name="pod").create(Cluster())
    assert len(calls) == 1


def losses(run_dir, *options, compiled):
    """Return the losses of some steps, [4], with the input outside the step, as on a TPU."""
    training = engine(run_dir, "optimizer=sgd", "optimizer.learning_rate=0.05", *options)
    loop = training.loop
    loop.feed = Pipeline(loop.feed.source, loop.strategy)
    iterator = loop.feed.open(0)

    @tf.function(jit_compile=compiled, autograph=False)
    def step(index, element):
        return loop.strategy.run(loop._replica_step, args=(index, element))

    sums = [
        step(tf.constant(index, tf.int64), loop.feed.next(iterator)).numpy() for index in range(4)
    ]
    return np.array([total[0] / total[1] for total in sums])


@pytest.fixture
def same_bits_everywhere(monkeypatch):
    """Draw random numbers by integer arithmetic.

    XLA's own generators return other bits than TensorFlow's kernels.
    """

    def fold_in(seed, data):
        return tf.cast(seed, tf.int64) * 1000003 + tf.cast(data, tf.int64)

    def draw(kernel, shape, dtype):
        seed = randomness.next_seed()
        size = math.prod(draws.static_shape(shape))
        drawn = randomness.uniform(0, seed[:1], seed[1:], size)
        return tf.cast(tf.reshape(drawn, shape), dtype)

    monkeypatch.setattr(tf.random.experimental, "stateless_fold_in", fold_in)
    monkeypatch.setattr(draws, "_draw", draw)


WHOLE = ["model.dropout=0.3", "model.batch_norm=true", "train.clip_norm=0.1", "train.ema_decay=0.9"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", first_only([WHOLE, [*WHOLE, "batch.accumulate=2", "model.synchronized=false"]])
)
def test_step_compiles_to_one_xla_program_with_the_same_losses(
    tmp_path, same_bits_everywhere, options
):
    plain = losses(tmp_path / "plain", *options, compiled=False)
    # Losses of about 2: rounded once in the weights, and once in the loss.
    np.testing.assert_allclose(
        losses(tmp_path / "compiled", *options, compiled=True), plain, atol=4 * ROUNDING
    )
    assert (
        np.abs(
            plain - losses(tmp_path / "without", *options, "model.dropout=0", compiled=False)
        ).max()
        > 1e-3
    )
