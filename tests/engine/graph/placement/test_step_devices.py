"""Where variables, layers, gradients and sums of a divided model are, and what moves between them.

The model has two layers: `first` is on logical device 0, `second` on 1.
"""

import itertools
import re

import pytest
import tensorflow as tf

from tests.support.training import assert_same_bits, engine, train, variables
from trainer.engine.graph.placement.step_devices import BACKWARD, device_key, traffic
from trainer.errors import ConfigError
from trainer.logical_devices import groups_of

NO_OPTIONS = [f"~model.{key}" for key in ("width", "dropout", "batch_norm", "synchronized", "l2")]
TWO_LAYERS = [
    *NO_OPTIONS, "model._target_=tests.support.toy_models.two_layers",
    "optimizer.learning_rate=0.01", "train.steps=1", "train.ema_decay=0.9",
]  # fmt: skip
HALVES = [option.replace("two_layers", "halves") for option in TWO_LAYERS]
HIDDEN, CLASSES, BATCH = 6, 10, 16  # of `two_layers`, and of SMALL
PLACED = "strategy.placement={flatten:0,first:0,second:1}"


def layout(replicas, devices):
    return [
        "strategy=mirrored",
        f"strategy.virtual_devices={replicas * devices}",
        f"strategy.devices_per_replica={devices}",
    ]


def traced(run_dir, *overrides, trained=False):
    """Trace a step, or train; return the engine and the graph of the step."""
    run = engine(run_dir, *overrides)
    graphs = []
    run.loop.on_traced = graphs.append
    if trained:
        run.train(lambda: False)
    else:
        run.loop.trace(run.loop.feed.open(0, run.state.divergence_monitor.left_out.numpy()))
    return run, graphs[0]


@pytest.fixture(scope="module", params=[1, 2], ids=["1x2", "2x2"])
def divided(request, tmp_path_factory):
    """A trained model on one or two replicas of two devices, and the graph of its step."""
    directory = tmp_path_factory.mktemp("divided")
    run, graph = traced(directory, *TWO_LAYERS, *layout(request.param, 2), PLACED)
    return request.param, run, graph


def is_backward(operation):
    return f"{BACKWARD}" in operation.name or "gradient_tape" in operation.name


def places(run, variable):
    return [
        device_key(local.device)[1]
        for local in run.loop.strategy.experimental_local_results(variable)
    ]


@pytest.mark.slow
def test_variables_slots_and_averages_are_placed_as_configured(divided):
    replicas, run, _ = divided
    model, optimizer = run.state.task.models["model"], run.state.task.optimizers["model"]
    expected = [[0, 2], [0, 2], [1, 3], [1, 3]]  # kernel and bias of each layer
    pairs = zip(model.trainable_variables, run.state.averages["model"], expected, strict=True)
    for variable, average, devices in pairs:
        slots = [optimizer.get_slot(variable, name) for name in optimizer.get_slot_names()]
        assert len(slots) == 2
        for each in (variable, average, *slots):
            assert places(run, each) == devices[:replicas]


def test_operations_are_where_their_layer_is_also_backward_and_in_the_update(divided):
    replicas, _, graph = divided
    seen = set()
    for operation in graph.get_operations():
        layer = re.search(r"logical_device_\d(?:_\d+)?/(first|second)/", operation.name)
        if layer is None or operation.type in ("ReadVariableOp", "Placeholder"):
            continue
        replica = int("/replica_1/" in operation.name)
        own = 2 * replica + (layer[1] == "second")
        assert device_key(operation.device) == ("CPU", own), operation.name
        seen.add((replica, layer[1], is_backward(operation)))
    expected = itertools.product(range(replicas), ("first", "second"), (False, True))
    assert seen == set(expected)
    updates = [op for op in graph.get_operations() if op.type == "ResourceApplyAdam"]
    updated = sorted(device_key(operation.device)[1] for operation in updates)
    assert updated == sorted(2 * list(range(2 * replicas)))


def test_bytes_are_those_counted_by_hand(divided):
    replicas, run, graph = divided
    within, between = traffic(graph, groups_of(run.loop.strategy).groups)
    hidden, logits = (4 * BATCH // replicas * size for size in (HIDDEN, CLASSES))
    # The hidden layer goes to device 1, the logits come back to the loss on device 0; and the
    # gradients of both take the same ways. Otherwise scalars: two norms, two gradients' shares,
    # learning rate, betas, epsilon, step.
    assert 0 < within - 2 * (hidden + logits) < 100
    parameters = 64 * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
    assert (between >= 2 * 4 * parameters) == (replicas == 2)


@pytest.mark.slow
def test_checkpoint_fits_any_layout(tmp_path):
    options = [*TWO_LAYERS, "train.steps=8", "batch.shards=4", "checkpoint.every_steps=2"]
    straight = train(tmp_path / "straight", *options)
    moved = tmp_path / "moved"
    placed = "strategy.placement={first:1,.*:0}"
    ways = [[*layout(2, 2), placed], ["strategy=one_device"], layout(4, 1), layout(2, 2)]
    for number, way in enumerate(ways, 1):
        run = engine(moved, *options, *way, f"train.steps={2 * number}")
        run.train(lambda: False)
        assert run.step == 2 * number
        assert (moved / "placement.json").exists() == (way in (ways[0], ways[3]))
    assert_same_bits(straight, variables(run))


@pytest.mark.slow
def test_logical_device_of_code_is_kept(tmp_path):
    one = train(tmp_path / "one", *HALVES)
    divided = [*layout(1, 2), "strategy.placement={.*:1}"]
    run, graph = traced(tmp_path / "two", *HALVES, *divided, trained=True)
    # The derivative of the sine is a cosine, and that of the cosine a sine.
    assert {
        (is_backward(operation), operation.type, device_key(operation.device)[1])
        for operation in graph.get_operations()
        if operation.type in ("Sin", "Cos")
    } == {(False, "Sin", 0), (False, "Cos", 1), (True, "Cos", 0), (True, "Sin", 1)}
    assert_same_bits(one, variables(run))


def test_logical_device_around_a_layer_places_its_variables_and_its_work(tmp_path):
    options = [*TWO_LAYERS, "+model.placed=true", *layout(1, 2), "strategy.placement={.*:0}"]
    run, graph = traced(tmp_path, *options)
    kernels = [v for v in run.state.task.models["model"].trainable_variables if "kernel" in v.name]
    assert [places(run, kernel) for kernel in kernels] == [[0], [1]]
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    assert {device_key(op.device)[1] for op in products if "/second/" in op.name} == {1}


def placed_layer(input_shape, num_classes):
    """Build a model with a layer that is made under a device scope."""
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    with tf.device("CPU:2"):
        x = tf.keras.layers.Dense(num_classes)(x)
    return tf.keras.Model(inputs, x)


@pytest.mark.parametrize("divided", [[], [*layout(1, 2), "strategy.placement={.*:1}"]])
def test_layer_made_under_a_device_is_refused(tmp_path, divided):
    message = (
        r"^model: variable kernel requests the device CPU:2, .*remove tf.device from the model"
    )
    with pytest.raises(ConfigError, match=message):
        engine(tmp_path, *NO_OPTIONS, f"model._target_={__name__}.placed_layer", *divided)
