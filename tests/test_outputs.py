"""The predictions of a whole split: in order, each example once, the same bits from wherever they begin."""

import numpy as np
import pytest
import tensorflow as tf

from tests.test_tasks import GAN
from tests.training import assert_same_bits, engine, variables
from trainer.datasets.digits import digits
from trainer.datasets.image_files import BadFiles, FileSplit
from trainer.input import Source, feed
from trainer.loop import PredictLoop
from trainer.outputs import Outputs
from trainer.turns import Stopped

STRATEGIES = {
    "one_device": [],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=2"],
}
# 50 examples a replica: the last of the 360 share a batch with what fills it up.
OPTIONS = [
    "train.ema_decay=0.9",
    "model.batch_norm=true",
    "model.dropout=0.3",
    "dataset.crop=1",
    "batch.per_replica=50",
    "batch.global_size=null",
]


def joined(chunks):
    """Puts chunks together."""
    chunks = list(chunks)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Gives the engine of a strategy, with two steps behind it."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = engine(tmp_path_factory.mktemp(name), *STRATEGIES[name], *OPTIONS, "train.steps=2")
            made[name].train(lambda: False)
        return made[name]

    return get


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_example_is_predicted_once_in_order_with_the_averages(trained, strategy):
    made = trained(strategy)
    before = variables(made)
    found = joined(made.outputs.each())
    assert_same_bits(before, variables(made))
    everything = digits().test.fetch(tf.range(360, dtype=tf.int64))
    assert (found["id"] == np.arange(360)).all()
    assert (found["weight"] == 1).all()
    assert (found["label"] == everything["label"].numpy()).all()
    made.state.swap_averages()
    logits = made.state.task.models["model"](tf.cast(everything["features"], tf.float32) / 16, training=False)
    made.state.swap_averages()
    assert found["probabilities"].dtype == np.float32
    np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(logits), atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_bits_do_not_depend_on_where_it_begins_nor_on_the_chunks(trained, strategy, monkeypatch):
    made = trained(strategy).outputs
    whole = joined(made.each())
    monkeypatch.setattr(made._turns, "_most", 1)
    chunks = list(made.each())
    assert max(len(chunk["id"]) for chunk in chunks) <= 100
    assert_same_bits(whole, joined(chunks))
    for start in (1, 249, 250, 359):
        assert_same_bits({name: value[start:] for name, value in whole.items()}, joined(made.each(start)))
    assert list(made.each(360)) == []


def test_strategies_agree_to_the_bit_where_the_batch_of_a_replica_is_the_same(trained):
    one, *others = (trained(name) for name in STRATEGIES)
    for other in others:
        for name, model in one.state.task.models.items():
            other.state.task.models[name].set_weights(model.get_weights())
        for mine, theirs in zip(one.state.averages["model"], other.state.averages["model"], strict=True):
            theirs.assign(mine.read_value())
        assert_same_bits(joined(one.outputs.each()), joined(other.outputs.each()))


def test_a_stop_is_honoured_between_two_calls_and_the_weights_are_as_before(trained, monkeypatch):
    made = trained("one_device")
    monkeypatch.setattr(made.outputs._turns, "_most", 1)
    before, phases, asked = variables(made), [], []
    chunks = made.outputs.each(stop_requested=lambda: bool(asked), enter=phases.append)
    asked.append(next(chunks))
    with pytest.raises(Stopped):
        next(chunks)
    assert len(phases) == 1
    assert_same_bits(before, variables(made))


def test_what_cannot_be_read_has_weight_zero_and_is_no_filling(trained, tmp_path):
    made = trained("one_device")
    for number in range(5):
        content = b"no image" if number == 2 else tf.io.encode_png(tf.fill([8, 8, 1], tf.cast(10 * number, tf.uint8))).numpy()
        (tmp_path / f"{number}.png").write_bytes(content)
    files = FileSplit(sorted(tmp_path.iterdir()), range(5), (8, 8, 1), antialias=False, bad=BadFiles(1))
    source, dataset = Source(files, per_replica=3, num_replicas=1), digits()
    loop = PredictLoop(made.loop.strategy, made.state.task, dataset, feed(source, made.loop.strategy))
    found = joined(Outputs(made.state, loop, source, made.peers, made.channel).each())
    assert found["id"].tolist() == [0, 1, 2, 3, 4] == found["label"].tolist()
    assert found["weight"].tolist() == [1, 1, 0, 1, 1]


def test_a_task_that_predicts_nothing_has_none(tmp_path):
    assert engine(tmp_path, *GAN).outputs is None
