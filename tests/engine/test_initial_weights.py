"""Initial weights: of a run, a checkpoint or a file; by place, and by name for another head."""

import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.engine.checkpoints.test_checkpointer import flip_a_bit
from tests.support.keras_archives import rewritten, write_on_loading
from tests.support.training import engine, train
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.graph.state.weight_paths import weights_of
from trainer.engine.initial_weights import restore_weights
from trainer.errors import CheckpointError


def model(units=2, layers=1):
    inputs = tf.keras.Input((3,))
    outputs = inputs
    for number in range(layers):
        outputs = tf.keras.layers.Dense(units, name=f"dense_{number}")(outputs)
    return tf.keras.Model(inputs, outputs)


def save_model(directory, step, *, averages=None):
    saved = model()
    tracked = {
        "models": {"model": saved},
        "step": tf.Variable(step),
        "averages": {} if averages is None else {"model": averages},
    }
    Checkpointer(directory, tracked).save(step, None)
    return [weight.copy() for weight in saved.get_weights()]


def assert_weights(model, expected):
    for weight, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_weights_come_from_run_or_from_one_checkpoint(tmp_path):
    first, second = (save_model(tmp_path / "checkpoints", step) for step in (1, 2))
    prefix = tmp_path / "checkpoints" / "ckpt-1"
    for source, step, expected in ((tmp_path, 2, second), (prefix, 1, first)):
        fresh = model()
        assert restore_weights(source, {"model": fresh}) == (f"step {step} of {source}", [])
        assert_weights(fresh, expected)
    flip_a_bit(tmp_path / "checkpoints", 2)
    text, (skipped,) = restore_weights(tmp_path, {"model": fresh})
    assert text == f"step 1 of {tmp_path}"
    assert "the content of ckpt-2.data-00000-of-00001 has changed" in skipped
    assert_weights(fresh, first)
    with pytest.raises(CheckpointError, match="there is no checkpoint that verifies"):
        restore_weights(tmp_path / "checkpoints" / "ckpt-2", {"model": fresh})


def test_averaged_weights_are_preferred(tmp_path):
    averages = [tf.Variable(tf.fill(shape, 7.0)) for shape in ((3, 2), (2,))]
    save_model(tmp_path / "checkpoints", 1, averages=averages)
    fresh = model()
    restore_weights(tmp_path, {"model": fresh})
    assert_weights(fresh, [variable.numpy() for variable in averages])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"layers": 2}, "it lacks dense_1/bias, dense_1/kernel"),
        ({"units": 4}, r"shape \(2,\) .* shape \(4,\) and name dense_0/bias:0"),
    ],
)
def test_variables_of_another_model_are_named(tmp_path, other, named):
    save_model(tmp_path / "checkpoints", 1)
    with pytest.raises(CheckpointError, match=rf"checkpoint of step 1 does not fit .*{named}"):
        restore_weights(tmp_path, {"model": model(**other)})


def test_checkpoint_in_a_folder_below_is_named(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    save_model(tmp_path / "runs" / "one" / "checkpoints", 1)
    hint = r"did you mean init_from=.*/one/checkpoints/ckpt-1$"
    for source in (tmp_path / "runs", tmp_path / "runs" / "one" / "checkpoints"):
        with pytest.raises(CheckpointError, match=hint):
            restore_weights(source, {"model": model()})


def convolutional(units=5, library=tf.keras):
    layers = library.layers
    convolution = layers.Conv2D(3, 2, activation="relu"), layers.BatchNormalization()
    whole = layers.Reshape((4, 4, 1)), *convolution, layers.Flatten(), layers.Dense(units)
    return library.Sequential([library.Input((4, 4)), *whole])


def save(folder, **parts):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**parts), str(folder), max_to_keep=1)
    return manager.save()


def warning(prefix):
    return [f"{prefix} has no marker of a run, so its content could not be verified"]


def test_tutorials_checkpoint_is_read_with_a_warning(tmp_path):
    saved, fresh = convolutional(), convolutional()
    prefix = save(tmp_path, model=saved, epoch=tf.Variable(2, dtype=tf.int64))
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    assert_weights(fresh, saved.get_weights())
    saved.save_weights(str(tmp_path / "weights"))
    other = convolutional()
    restore_weights(tmp_path / "weights", {"model": other})
    assert_weights(other, saved.get_weights())


@pytest.mark.parametrize("make", [convolutional, lambda: Keras3Model(convolutional(library=keras))])
def test_checkpoint_of_keras_3_is_matched_by_order_and_name(tmp_path, make):
    saved = convolutional(library=keras)
    random = np.random.default_rng(0)
    saved.set_weights([random.normal(size=w.shape) for w in saved.get_weights()])
    prefix = save(tmp_path, model=saved)
    fresh = make()
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    assert_weights(fresh, saved.get_weights())


def test_model_of_keras_3_names_what_does_not_fit(tmp_path):
    prefix = save(tmp_path, model=convolutional(library=keras))
    other = Keras3Model(convolutional(6, keras))
    before = other.get_weights()
    with pytest.raises(CheckpointError, match=rf"{prefix}.* has the shape .*, this one"):
        restore_weights(tmp_path, {"model": other})
    assert_weights(other, before)


LIBRARIES = [tf.keras.layers, keras.layers]


def net(layers, head, seed=0):
    """Return a net with layers of one kind side by side, within others, and with attention."""
    library = keras if layers is keras.layers else tf.keras
    library.utils.set_random_seed(seed)
    inputs = layers.Input([3, 4])
    block = library.Sequential(
        [layers.Dense(4, name="one"), layers.Dropout(0.5), layers.Dense(4, name="two")],
        name="block",
    )
    x = layers.BatchNormalization(name="norm")(block(layers.Dense(4, name="first")(inputs)))
    x = layers.MultiHeadAttention(2, 2, name="attention")(x, x)
    model = library.Model(inputs, layers.Dense(head, name="head")(x), name="net")
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)  # a file has its variables too
    return model


def adapted(model):
    return Keras3Model(model) if isinstance(model, keras.Model) else model


def values(model):
    return {
        weight.path: weight.container.numpy() for weight in weights_of({"model": adapted(model)})
    }


def same(a, b):
    return [name for name in a if name in b and np.array_equal(a[name], b[name])]


@pytest.mark.parametrize(
    ("source", "target", "suffix", "is_named"),
    [
        *(
            (library, library, suffix, True)
            for library in LIBRARIES
            for suffix in (".h5", ".keras")
        ),
        *((*pair, ".keras", True) for pair in (LIBRARIES, LIBRARIES[::-1])),
        # As tf_keras writes it, and as an older Keras 3 did; and as it is written today.
        *((library, library, ".weights.h5", False) for library in LIBRARIES),
        (keras.layers, tf.keras.layers, ".weights.h5", True),
    ],
)
def test_file_gives_all_but_the_head(tmp_path, source, target, suffix, is_named):
    path = tmp_path / f"saved{suffix}"
    saved = net(source, 2)
    (saved.save_weights if suffix == ".weights.h5" else saved.save)(path)
    if not is_named:
        with h5py.File(path, "a") as file:
            file.visititems(lambda name, item: item.attrs.pop("name", None) and None)
    model = net(target, 5, seed=1)
    before = values(model)
    with pytest.raises(CheckpointError, match=r"has head/kernel as \[4, 2\].*init_allow=\[head\]"):
        restore_weights(path, {"model": adapted(model)})
    assert len(same(before, values(model))) == len(before) == 20
    text, _ = restore_weights(path, {"model": adapted(model)}, ["^head/"])
    unused = "head/kernel, head/bias" if suffix == ".h5" else "head/0, head/1"
    assert text.endswith(f"; fresh: head/kernel, head/bias; not used: {unused}")
    assert len(same(values(saved), values(model))) == 18
    assert {"head/kernel", "head/bias"} <= set(same(before, values(model)))


def test_archive_gives_layers_by_name_in_another_order(tmp_path):
    path = tmp_path / "saved.keras"

    def chain(*names):
        dense = (keras.layers.Dense(4, name=name) for name in names)
        return keras.Sequential([keras.layers.Input([4]), *dense])

    saved, model = chain("one", "two", "three"), chain("three", "one")
    saved.save(path)
    text, _ = restore_weights(path, {"model": adapted(model)})
    assert text == f"4 of 4 weights from {path}; not used: two/0, two/1"
    assert len(same(values(saved), values(model))) == 4


def test_operations_that_a_file_names_are_not_run(tmp_path):
    path = tmp_path / "saved.keras"
    saved, fresh = model(), model()
    saved.save(path)
    rewritten(path, lambda config, _: write_on_loading(config, tmp_path / "written"))
    restore_weights(path, {"model": fresh})
    assert_weights(fresh, saved.get_weights())
    assert not (tmp_path / "written").exists()


def external_link(group, other):
    del group["vars/0"]
    group["vars/0"] = h5py.ExternalLink(str(other), "secret")


def huge(group, other):
    del group["vars/0"]
    group["vars"].create_dataset("0", (1 << 20, 1 << 20), "f4", chunks=(1024, 1024))


def in_weights(change):
    """Return a change of the weights in an archive, next to which another file has a secret."""

    def call(path):
        with h5py.File(other := path.with_name("other.h5"), "w") as file:
            file["secret"] = np.ones([4, 3], np.float32)
        rewritten(path, lambda _, file: change(file["layers/dense"], other))

    return call


def with_member(name, content):
    def change(path):
        with zipfile.ZipFile(path) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, value in (members | {name: content}).items():
                archive.writestr(member, value)

    return change


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("a.npz", lambda path: np.savez(path, a=np.array([None])), "Object arrays cannot be"),
        (
            "a.npz",
            lambda path: np.savez(path, a=np.array(["x"])),
            "a has the type <U1, which is no",
        ),
        ("a.npz", lambda path: np.save(path.open("wb"), np.ones(3)), "one array without names"),
        ("a.weights.h5", lambda path: h5py.File(path, "w").close(), "no weights"),
        ("a.keras", in_weights(external_link), "vars/0' is in another file, '.*other.h5'"),
        ("a.keras", in_weights(huge), "vars/0' declares 4398046511104 bytes, but holds 0"),
        ("a.keras", with_member("../outside", b""), "a member outside itself, '../outside'"),
        ("a.keras", with_member("bomb", bytes(1 << 25)), "it declares .* bytes, but holds"),
        ("a.keras", with_member("config.json", b"[" * 100_000), "recursion"),
        ("a.keras", with_member("model.weights.h5", b"none"), ""),
    ],
)
def test_file_that_is_damaged_or_made_to_harm_is_refused(tmp_path, name, change, problem):
    path = tmp_path / name
    if path.suffix == ".keras":
        model().save(path)
    change(path)
    with pytest.raises(CheckpointError, match=rf"^init_from \(.*\) cannot be read: .*{problem}"):
        restore_weights(path, {"model": model()})


@pytest.mark.parametrize("layers", LIBRARIES)
def test_names_of_arrays_are_replaced_by_patterns(tmp_path, layers):
    path = tmp_path / "saved.npz"
    saved = values(net(layers, 2))
    others = {"first/kernel": "encoder/0/w", "first/bias": "encoder/0/b"}
    # Another program: another precision and order, and names with slashes.
    arrays = {name: value.astype(np.float64) for name, value in reversed(saved.items())}
    np.savez(path, **{others.get(name, name): value for name, value in arrays.items()})
    model = net(layers, 2, seed=1)
    rename = {r"^encoder/(\d)/": r"layer\1/", "layer0/w": "first/kernel", "layer0/b": "first/bias"}
    text, _ = restore_weights(path, {"model": adapted(model)}, rename=rename)
    assert text == f"20 of 20 weights from {path}"
    assert len(same(saved, values(model))) == 20


@pytest.mark.parametrize(
    ("rename", "problem"),
    [
        (
            {"dnese": "top"},
            r"init_rename \('dnese'\) matches no weight of .*; the nearest are dense",
        ),
        (
            {"kernel|bias": "x"},
            "init_rename makes dense_0/x of both dense_0/kernel and dense_0/bias",
        ),
    ],
)
def test_patterns_that_rename_nothing_or_two_to_one_name_are_refused(tmp_path, rename, problem):
    path = tmp_path / "saved.npz"
    np.savez(path, **values(model()))
    with pytest.raises(CheckpointError, match=problem):
        restore_weights(path, {"model": model()}, rename=rename)


def test_no_weight_is_given_to_two_layers(tmp_path):
    """Not to one that has its name, and one whose name ends so."""
    layers = tf.keras.layers
    path = tmp_path / "saved.npz"
    np.savez(path, **{"outer/head/kernel": np.ones([4, 4]), "outer/head/bias": np.ones([4])})
    inner = tf.keras.Sequential([layers.Dense(4, name="head")], name="outer")
    model = tf.keras.Sequential([inner, layers.Dense(4, name="head")])
    model.build([None, 4])
    with pytest.raises(CheckpointError, match="lacks head/kernel, head/bias; to start"):
        restore_weights(path, {"model": model})
    text, _ = restore_weights(path, {"model": model}, ["^head"])
    assert text.startswith("2 of 4 weights from ")


@pytest.mark.slow
def test_run_gives_its_averages_but_for_the_head(tmp_path):
    options = (
        "model._target_=tests.support.toy_models.blocks", "model.batch_norm=true",
        "train.ema_decay=0.9", "train.steps=2",
    )  # fmt: skip
    train(tmp_path / "run", *options)
    saved = engine(tmp_path / "run", *options)
    saved.checkpointer.restore(2)
    saved.state.swap_averages()
    models = saved.state.task.models
    expected = {weight.path: weight.container.numpy() for weight in weights_of(models)}
    other = tf.keras.models.clone_model(next(iter(models.values())))
    features = other.get_layer("body").output
    model = tf.keras.Model(other.input, tf.keras.layers.Dense(3, name="new")(features))
    text, _ = restore_weights(tmp_path / "run", {"model": model}, ["new"])
    assert text.startswith(f"8 of 10 weights from step 2 of {tmp_path / 'run'}; fresh: new/kernel")
    assert len(same(expected, values(model))) == 8
