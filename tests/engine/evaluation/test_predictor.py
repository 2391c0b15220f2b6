"""Predictions of a whole split: each example once, in order, with the same bits from any start."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import ROUNDING, assert_same_bits, engine, variables
from trainer.datasets.digits import digits
from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import CorruptFiles, FileSplit
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source, feed
from trainer.engine.graph.loops.predict_loop import PredictLoop
from trainer.engine.pacing import Stopped

STRATEGIES = {
    "one_device": [],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=2"],
}
# 50 examples a replica: the last of the 360 share a batch with padding.
OPTIONS = [
    "train.ema_decay=0.9",
    "model.batch_norm=true",
    "model.dropout=0.3",
    "augment.crop=1",
    "batch.per_replica=50",
    "batch.global_size=null",
]


def joined(chunks):
    """Concatenate chunks."""
    chunks = list(chunks)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the engine of a strategy that has trained two steps."""
    engines = {}

    def get(name):
        if name not in engines:
            engines[name] = engine(
                tmp_path_factory.mktemp(name), *STRATEGIES[name], *OPTIONS, "train.steps=2"
            )
            engines[name].train(lambda: False)
        return engines[name]

    return get


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_predict_yields_each_example_once_in_order_with_averages(trained, strategy):
    run_engine = trained(strategy)
    before = variables(run_engine)
    predictions = joined(run_engine.predictor.predict())
    assert_same_bits(before, variables(run_engine))
    batch = digits().test.fetch(tf.range(360, dtype=tf.int64))
    assert (predictions["id"] == np.arange(360)).all()
    assert (predictions["weight"] == 1).all()
    assert (predictions["label"] == batch["label"].numpy()).all()
    run_engine.state.swap_averages()
    logits = run_engine.state.task.models["model"](
        tf.cast(batch["features"], tf.float32) / 16, training=False
    )
    run_engine.state.swap_averages()
    assert predictions["probabilities"].dtype == np.float32
    np.testing.assert_allclose(predictions["probabilities"], tf.nn.softmax(logits), atol=ROUNDING)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_predictions_do_not_depend_on_start_or_chunks(trained, strategy, monkeypatch):
    predictor = trained(strategy).predictor
    whole = joined(predictor.predict())
    monkeypatch.setattr(predictor._calls, "_max_batches", 1)
    chunks = list(predictor.predict())
    assert max(len(chunk["id"]) for chunk in chunks) <= 100
    assert_same_bits(whole, joined(chunks))
    for start in (1, 249, 250, 359):
        assert_same_bits(
            {name: value[start:] for name, value in whole.items()}, joined(predictor.predict(start))
        )
    assert list(predictor.predict(360)) == []


def test_stop_between_two_calls_restores_weights(trained, monkeypatch):
    run_engine = trained("one_device")
    monkeypatch.setattr(run_engine.predictor._calls, "_max_batches", 1)
    before = variables(run_engine)
    phases, requests = [], []
    chunks = run_engine.predictor.predict(
        stop_requested=lambda: bool(requests), enter=phases.append
    )
    requests.append(next(chunks))
    with pytest.raises(Stopped):
        next(chunks)
    assert len(phases) == 1
    assert_same_bits(before, variables(run_engine))


def test_unreadable_file_has_weight_zero_and_is_not_padding(trained, tmp_path):
    run_engine = trained("one_device")
    for number in range(5):
        content = (
            b"no image"
            if number == 2
            else tf.io.encode_png(tf.fill([8, 8, 1], tf.cast(10 * number, tf.uint8))).numpy()
        )
        (tmp_path / f"{number}.png").write_bytes(content)
    files = FileSplit(
        sorted(tmp_path.iterdir()), range(5), (8, 8, 1), framing=Framing(), corrupt=CorruptFiles(1)
    )
    source, dataset = Source(files, per_replica=3, num_replicas=1), digits()
    loop = PredictLoop(
        run_engine.loop.strategy,
        run_engine.state.task,
        dataset,
        feed(source, run_engine.loop.strategy),
    )
    predictions = joined(
        Predictor(
            run_engine.state, loop, source, run_engine.process_group, run_engine.channel
        ).predict()
    )
    assert predictions["id"].tolist() == [0, 1, 2, 3, 4] == predictions["label"].tolist()
    assert predictions["weight"].tolist() == [1, 1, 0, 1, 1]
