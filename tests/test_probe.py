"""What is looked at is the step that comes next, and looking at it changes nothing."""

import functools
import itertools
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.test_tasks import GAN
from tests.training import RANDOM, assert_same_bits, engine, train, variables
from trainer.errors import ConfigError
from trainer.probe import MAX_IMAGES, Probe, as_images
from trainer.tasks.classification import Classification
from trainer.writers.base import Writer

ONE, TWO = ["strategy=one_device"], ["strategy=mirrored", "strategy.virtual_devices=2"]
READ = ["dataset._target_=tests.toy_datasets.poisoned", "+dataset.ids=[0]", "+dataset.factor=1", "+dataset.read=true"]
RATE = 0.05
SGD = ["optimizer=sgd", f"optimizer.learning_rate={RATE}", "optimizer.momentum=0"]


class Recorder(Writer):
    """Keeps what it is shown."""

    def __init__(self):
        self.shown_images, self.shown_histograms = {}, {}

    def images(self, split, step, name, images):
        self.shown_images[split, step, name] = images

    def histogram(self, split, step, name, values):
        self.shown_histograms[step, name] = values


class Seen(Classification):
    """Keeps the features that each replica is trained on."""

    def __init__(self, *, folder):
        super().__init__()
        self.folder = str(pathlib.Path(folder).absolute())

    def train_step(self, batch, step):
        name = tf.strings.join([self.folder, "/", tf.strings.as_string(step.index), "-", tf.strings.as_string(batch["id"][0])])
        with tf.control_dependencies([tf.io.write_file(name, tf.io.serialize_tensor(batch["features"]))]):
            return super().train_step(tf.nest.map_structure(tf.identity, batch), step)


def look(made, step):
    """Shows step `step` of an engine to a writer."""
    made.reporter._probe.show(step, [recorder := Recorder()])
    return recorder


def advance(made, count):
    """Makes steps without all that is around them."""
    begin = int(made.state.step.numpy())
    made.loop.run(made.loop.feed.start(begin, made.state.guard.left_out.numpy()), tf.constant(count, tf.int64))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([*ONE, *RANDOM, "batch.accumulate=2"], id="one_device", marks=pytest.mark.slow),
        pytest.param([*TWO, *RANDOM], id="mirrored", marks=pytest.mark.slow),
        pytest.param([*ONE, *RANDOM, *READ], id="read"),
        pytest.param([*TWO, *GAN], id="two optimizers", marks=pytest.mark.slow),
    ],
)
def test_looking_changes_no_bit(tmp_path, more):
    plain = train(tmp_path / "plain", *more)
    assert_same_bits(plain, train(tmp_path / "looked", *more, "summary.histograms=3", "summary.images=2"))


@pytest.mark.parametrize("more", [pytest.param(ONE, id="one_device", marks=pytest.mark.slow), pytest.param(TWO, id="mirrored")])
def test_gradients_are_those_of_the_next_step(tmp_path, more):
    made = engine(tmp_path, *more, *RANDOM, *SGD, "train.clip_norm=100", "summary.histograms=2")
    advance(made, 2)
    found = look(made, 2).shown_histograms
    before = {name: values for (_, name), values in found.items() if name.startswith("weights/")}
    gradients = {name.replace("gradients/", "weights/"): values for (_, name), values in found.items() if name.startswith("gradients/")}
    advance(made, 1)
    after = {f"weights/{variable.name[:-2]}": variable.numpy() for variable in made.state.task.models["model"].trainable_variables}
    assert before.keys() == gradients.keys() == after.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(after[name], before[name] - np.float32(RATE) * gradient, rtol=1e-5, atol=1e-7, err_msg=name)
    norm = np.sqrt(sum(np.sum(gradient.astype(np.float64) ** 2) for gradient in gradients.values()))
    assert made.loop.report() == {"gradient_norm": pytest.approx(norm, rel=1e-5)}


@pytest.mark.parametrize("more", [pytest.param(TWO, id="mirrored"), pytest.param([*ONE, *READ], id="read", marks=pytest.mark.slow)])
def test_images_are_those_of_the_next_step_after_augmentation(tmp_path, more):
    folder = tmp_path / "seen"
    folder.mkdir()
    task = ["task._target_=tests.test_probe.Seen", f"+task.folder={folder}", "~task.label_smoothing"]
    made = engine(tmp_path / "run", *more, *RANDOM, *task, "summary.images=2")
    advance(made, 2)
    ((key, images),) = look(made, 2).shown_images.items()
    assert key == ("train", 2, "inputs")
    assert not list(folder.glob("2-*"))
    advance(made, 1)
    parts = [tf.io.parse_tensor(file.read_bytes(), tf.float32).numpy() for file in folder.glob("2-*")]
    ways = [as_images(np.concatenate(order)) for order in itertools.permutations(parts)]
    assert images.shape == (MAX_IMAGES, 8, 8, 1)
    assert any(np.array_equal(images, way) for way in ways)


def test_each_model_has_histograms_of_its_own(tmp_path):
    found = look(engine(tmp_path, *ONE, *GAN, "summary.histograms=1"), 1).shown_histograms
    for model, layer, what in itertools.product(("generator", "discriminator"), ("kernel", "bias"), ("weights", "gradients")):
        assert [name for _, name in found if name.startswith(f"{what}/{model}/dense") and name.endswith(layer)]


def test_only_what_is_due_is_shown_and_the_last_step_is_always(tmp_path):
    made = engine(tmp_path, *ONE, "summary.histograms=3", "summary.images=4")
    assert [step for step in range(1, 9) if made.reporter._probe.due(step)] == [3, 4, 6, 8]
    shown = {step: look(made, step) for step in (3, 4)}
    assert (bool(shown[3].shown_histograms), bool(shown[3].shown_images)) == (True, False)
    assert (bool(shown[4].shown_histograms), bool(shown[4].shown_images)) == (False, True)
    assert engine(tmp_path / "off", *ONE).reporter._probe is None


def test_images_are_stretched_each_by_itself():
    features = np.array([[[-1.0, 0.0], [1.0, 3.0]], [[0.5, 0.5], [0.5, 0.5]], [[np.nan, 2.0], [np.inf, 4.0]]], np.float32)
    images = as_images(features)
    assert (images.shape, images.dtype) == ((3, 2, 2, 1), np.uint8)
    assert images.reshape(3, 4).tolist() == [[0, 64, 128, 255], [0, 0, 0, 0], [0, 0, 0, 255]]
    assert as_images(np.zeros([2, 4, 5, 3])).shape == (2, 4, 5, 3)


def test_features_that_are_no_images_are_refused():
    plan = SimpleNamespace(images=SimpleNamespace(every_steps=10))
    make = functools.partial(Probe, SimpleNamespace(state=None), None, plan)
    for shape in ([28, 28], [28, 28, 1], [32, 32, 3], [32, 32, 4]):
        make(shape)
    for shape in ([784], [32, 32, 2], [4, 32, 32, 3]):
        with pytest.raises(ConfigError, match=r"^summary.images \(10\) needs features that are images, .* add summary.images=null$"):
            make(shape)


def test_the_moving_statistics_stay(tmp_path):
    made = engine(tmp_path, *TWO, *RANDOM, "summary.histograms=1")
    before = variables(made)
    look(made, 1)
    assert_same_bits(before, variables(made))
