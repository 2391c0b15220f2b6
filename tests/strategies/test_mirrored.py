import hydra
import pytest
import tensorflow as tf

from tests.support.toy_ops import CountingOps
from tests.support.training import ROUNDING, distance, engine, train, trained, variables
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.strategies.mirrored import Mirrored

TWENTY_STEPS = [
    "model._target_=tests.support.toy_models.smooth",
    "optimizer=sgd",
    "optimizer.learning_rate=0.05",
    "train.steps=20",
    "batch.global_size=12",
]


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    """The state before the first step."""
    return variables(engine(tmp_path_factory.mktemp("initial"), *TWENTY_STEPS))


@pytest.mark.parametrize(
    "options",
    [
        ["devices=[CPU:2,CPU:0,CPU:1]"],
        ["virtual_devices=4", "cross_device_ops=hierarchical_copy", "num_packs=0"],
        ["virtual_devices=3", "cross_device_ops=reduction_to_one_device"],
    ],
    ids=" ".join,
)
def test_mirrored_trains_the_weights_of_one_device(initial, tmp_path, options):
    one = trained(*TWENTY_STEPS).variables
    other = train(
        tmp_path,
        "strategy=mirrored",
        *(f"++strategy.{option}" for option in options),
        *TWENTY_STEPS,
    )
    assert distance(one, other, initial) <= ROUNDING


def test_accumulation_of_a_users_own_replaces_the_sum():
    """Of two replicas' 1 and 2 and 4 and -8, the largest."""
    options = {"_target_": "tests.support.toy_ops.largest"}
    strategy = Mirrored(
        virtual_devices=2, cross_device_ops=lambda: hydra.utils.instantiate(options)
    ).create(Cluster())

    @tf.function(autograph=False)
    def reduced():
        def replica():
            context = tf.distribute.get_replica_context()
            one, other = tf.constant([1.0, 4.0]), tf.constant([2.0, -8.0])
            number = context.replica_id_in_sync_group
            return context.all_reduce("SUM", tf.where(tf.equal(number, 0), one, other))

        return strategy.run(replica)

    for result in strategy.experimental_local_results(reduced()):
        assert list(result.numpy()) == [2.0, 4.0]


@pytest.fixture
def created(two_gpus, monkeypatch):
    """The arguments of MirroredStrategy, on a machine with two GPUs."""
    calls = []
    monkeypatch.setattr(
        tf.distribute,
        "MirroredStrategy",
        lambda devices, cross_device_ops: calls.append((devices, cross_device_ops)),
    )
    return calls


def test_gpus_use_the_default_of_tensorflow(created):
    Mirrored().create(Cluster())
    Mirrored(devices=["gpu:1"]).create(Cluster())
    assert created == [(["GPU:0", "GPU:1"], None), (["GPU:1"], None)]


def test_num_replicas_needs_no_tensorflow():
    assert Mirrored(virtual_devices=3).num_replicas() == 3
    assert Mirrored(devices=["GPU:0", "GPU:1"]).num_replicas() == 2
    assert Mirrored().num_replicas() is None


def test_operations_that_cannot_sum_are_refused():
    nccl, own = Mirrored(cross_device_ops="nccl"), Mirrored(cross_device_ops=dict)
    nccl.check(Cluster())
    with pytest.raises(ConfigError, match=r"cross_device_ops \(nccl\) needs GPUs, and the devices"):
        nccl.create(Cluster())
    with pytest.raises(ConfigError, match=r"\(dict\) must make a tf.distribute.CrossDeviceOps$"):
        own.create(Cluster())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"virtual_devices": 1}, None),
        ({"virtual_devices": 2}, "hierarchical copy"),
        ({"virtual_devices": 3}, "reduction to one device"),
        ({"virtual_devices": 2, "cross_device_ops": lambda: CountingOps(step=1)}, "CountingOps"),
    ],
)
def test_replicas_report_their_communication(options, text):
    strategy = Mirrored(**options)
    strategy.create(Cluster())
    assert strategy.communication == text
