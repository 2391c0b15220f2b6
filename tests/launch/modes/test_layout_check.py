"""verify.layouts: equal to the bit with shards, and how a layout differs without."""

import pytest

from tests.support.processes import OPTIONS, run
from trainer.launch.modes.layout_check import layouts

CHECK = [
    *OPTIONS, "mode=verify", "verify.layouts=true", "verify.steps=4", "evaluate.every_steps=4",
]  # fmt: skip
MODEL = "model._target_=tests.support.toy_models.everything"
DRAWS = """
import tensorflow as tf


class Draws(tf.keras.layers.Layer):
    def call(self, x, training=False):
        seed = tf.cast(tf.reduce_sum(x) * 1000, tf.int32)
        noise = tf.random.stateless_normal(tf.shape(x), tf.stack([seed, 0]))
        return x + noise if training else x


class Shared(tf.keras.layers.Layer):
    def call(self, x):
        replica = tf.distribute.get_replica_context()
        return x + replica.all_reduce("mean", tf.reduce_mean(x)) if replica else x


def net(input_shape, num_classes, **options):
    layers = tf.keras.layers
    own = [layers.Flatten(), Draws(), Shared()]
    return tf.keras.Sequential([tf.keras.Input(input_shape), *own, layers.Dense(num_classes)])
"""


def test_layouts_split_the_cpu_or_take_the_gpus_of_the_machine():
    assert [layout.name for layout in layouts(0)] == [
        "one_device",
        *(f"{name}-{n}" for name in ("mirrored", "central_storage") for n in (2, 4, 8)),
        *(f"multi_worker-{n}" for n in (2, 4, 8)),
    ]
    on_gpus = {layout.name: layout for layout in layouts(4)}
    assert sorted(on_gpus) == sorted(
        ["one_device", *(f"{name}-{n}" for name in ("mirrored", "central_storage", "multi_worker")
                         for n in (2, 4))]
    )  # fmt: skip
    assert on_gpus["mirrored-2"].num_gpus == 2
    assert "virtual_devices" not in on_gpus["mirrored-2"].strategy


@pytest.mark.long
def test_all_layouts_are_equal_with_shards(tmp_path):
    code, out, err = run(tmp_path, *CHECK, MODEL, "batch.shards=4")
    assert code == 0, out + err
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert lines.pop("one_device").startswith("step 4, ")
    for name in ("mirrored-8", "central_storage-8", "multi_worker-8"):
        assert lines.pop(name).startswith("left out: batch.shards (4) must be a power of two")
    assert set(lines.values()) == {"equal to the bit"}
    assert len(lines) == 6
    assert not any((tmp_path / "runs").iterdir())


@pytest.mark.slow
def test_code_that_depends_on_the_layout_is_found(tmp_path):
    (tmp_path / "nets.py").write_text(DRAWS)
    code, out, err = run(tmp_path, *CHECK, "model._target_=nets.net", "batch.global_size=2")
    assert code == 1, out + err
    lines = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    assert lines["mirrored-2"].startswith("differs from the metrics of step ")
    assert " at most, in models/model/" in lines["mirrored-2"]
    assert lines["mirrored-4"].startswith("left out: batch.global_size (2) must be divisible")
    assert "Without batch.shards only rounding is alike; add batch.shards=8." in out
    causes = [line for line in out.splitlines() if line.startswith("likely cause: ")]
    assert [cause.split(": ")[1] for cause in causes] == ["nets.py:8", "nets.py:15"]
    assert "StatelessRandomNormalV2 in sequential/draws" in causes[0]
    assert "all_reduce in sequential/shared" in causes[1]
