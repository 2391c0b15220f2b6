"""Every feature on every layout: the bits of one device, also after a stop or a kill.

With `batch.shards` the parts of a batch are added up in one order wherever they are computed. Each
pair is trained once; what takes two processes is for the long tests but for a few pairs.
"""

import functools

import numpy as np
import pytest

from tests.support.choices import listed
from tests.support.processes import assert_same_run, finished
from tests.support.scratch import new_folder
from tests.support.training import assert_same_bits, recipe

SHORT = (
    "train.steps=6", "train.epochs=null", "batch.global_size=16", "batch.shards=2",
    "evaluate.every_steps=3", "evaluate.every_epochs=null", "summary.every_steps=2",
    "checkpoint.every_steps=2", "checkpoint.every_epochs=null", "restart.backoff_secs=0",
    "writers=[jsonl]",
)  # fmt: skip
WORKERS = ("strategy=multi_worker", "strategy.workers=2")
LOOKS = ("summary.histograms=3", "watchdog.audit_every_steps=3")  # they change nothing
LAYOUTS = {
    "stopped": ("strategy=mirrored", "strategy.virtual_devices=2", *LOOKS),
    "central": ("strategy=central_storage", "strategy.virtual_devices=2"),
    "killed": (*WORKERS, "+fault.kill={action:kill,process:worker-1,phase:step,at:5}"),
    "ring": (*WORKERS, "strategy.communication=ring"),
}
OF_FOUR_PARTS = {
    "4 workers": ("strategy=multi_worker", "strategy.workers=4"),
    "2 workers of 2 devices": (
        *WORKERS, "strategy._target_=tests.support.toy_strategies.TwoDevices",
        "strategy.communication=ring",
    ),
}  # fmt: skip

OWN_MODEL = ("model=softmax", "~model.l2")
SOFTMAX = ("model=softmax",)
BLOCK = ("model.width=8", "model.hidden=8", "model.heads=2", "model.layers=1")


def keras_program(name, library):
    """Return the options of a Keras program with a step, losses or a compiled model of its own."""
    compiled = ("task.loss=sparse_categorical_crossentropy", "optimizer=adam")
    return (
        "task=keras", "dataset=digits", f"model._target_=tests.programs.keras_steps.{name}",
        f"+model.library={library}", *(compiled if name == "functional" else ()),
    )  # fmt: skip


COLUMNS = (
    *OWN_MODEL, "model._target_=tests.programs.columns.net",
    "task._target_=tests.programs.columns.TwoLosses", "batch.accumulate=2",
)  # fmt: skip
BATCH = "all that depends on how a batch is cut"
FEATURES = {
    BATCH: (
        "model=cnn", "model._target_=tests.support.toy_models.everything", "model.width=4",
        "model.dropout=0.3", "model.batch_norm=true", "model.l2=0.001",
        "dataset=digits", "augment.crop=1", "augment.brightness=0.2", "augment.contrast=0.2",
        "augment.randaugment=1", "augment.magnitude=5", "augment.mixup=0.2", "augment.cutmix=1.0",
        "batch.global_size=48", "batch.accumulate=2", "batch.shards=4", "train.clip_norm=0.5",
        "train.ema_decay=0.9", "optimizer=sgd", "optimizer.momentum=0.9", "metrics=confusion",
    ),
    "Keras 3": (
        *OWN_MODEL, "model._target_=tests.support.keras3_models.everything", "train.ema_decay=0.9",
        "train.clip_norm=0.1", "summary.histograms=4",
    ),
    "samples that are left out": (  # those of step 4, whose loss is NaN
        *OWN_MODEL, "model._target_=tests.support.toy_models.tiny", "+model.synchronized=false",
        "dataset=digits", "dataset._target_=tests.support.toy_datasets.poisoned",
        "+dataset.ids=[720]", "divergence.action=rollback", "train.ema_decay=0.9",
    ),
    "frozen layers and groups of weights": (
        "model=cnn", "model._target_=tests.support.toy_models.blocks", "model.batch_norm=true",
        "model.synchronized=false", "train.freeze=[stem_norm]", "train.clip_norm=0.5",
        "optimizer.groups={head:{learning_rate:10x},stem/kernel:{clip_norm:0.1}}",
        "optimizer.layer_decay=0.8", "train.ema_decay=0.9",
    ),
    "target network": (
        *SOFTMAX, "task._target_=tests.support.toy_targets.WithTarget", "~task.label_smoothing",
        "~task.class_weights", "~task.focal_gamma",
    ),
    "normalization of each shard": (
        "model=cnn", "model.width=4", "model.batch_norm=true", "model.synchronized=false",
        "dataset=digits",
    ),
    "own transform": (
        "dataset._target_=tests.support.toy_datasets.waves", "augment.brightness=0.2",
        "batch.global_size=36",
    ),
    "large table": (
        "dataset=arrays", "dataset.data._target_=tests.support.toy_tables.examples",
        "model._target_=tests.support.toy_tables.model", "optimizer=adagrad",
        "batch.accumulate=2", "train.clip_norm=0.1", "train.ema_decay=0.9",
    ),
    "columns": (
        *COLUMNS, "dataset=arrays", "dataset.data._target_=tests.programs.columns.columns",
    ),
    "columns of a stream": (
        *COLUMNS, "dataset=stream", "dataset.train._target_=tests.programs.columns.batches",
        "dataset.test._target_=tests.programs.columns.batches", "+dataset.test.seed=2",
    ),
    **{
        f"adapted layers of {name}": (
            "model=softmax", f"model._target_=tests.programs.adapted.{name}", "dataset=digits",
            "dataset._target_=tests.programs.adapted.people",
        )
        for name in ("net", "legacy_net")
    },
    **{
        f"{name} of {library}": keras_program(name, library)
        for name in ("compiled", "functional", "subclassed", "vae", "gan", "averaging")
        for library in ("tf_keras", "keras")
    },
    "losses that are added": keras_program("added", "tf_keras"),
    **{
        f"optimizer {name}": (*SOFTMAX, f"optimizer={name}")
        for name in listed("optimizer").split(", ")
    },
    "texts": ("task=sequence_classification", "dataset=sentiment", "dataset.length=16", *BLOCK),
    "language model": (
        "task=language_model", "model=transformer", "dataset=sentences",
        "dataset.characters=2000", "dataset.length=8", *BLOCK,
    ),
    "segmentation": (
        "task=segmentation", "dataset=shapes", "dataset.num_examples=48", "dataset.num_test=20",
        "dataset.image_size=[16,16]", "model=unet", "model.width=2", "model.depth=1",
        "model.synchronized=false",
    ),
}  # fmt: skip
QUICK = {"optimizer muon"}
SHOWN_BY_OTHERS = {
    "functional of keras", "subclassed of tf_keras", "averaging of keras", "compiled of tf_keras",
    "vae of tf_keras", "gan of tf_keras",
    *(feature for feature in FEATURES if feature.startswith("optimizer ")),
} - {"optimizer adam", *QUICK}  # fmt: skip
"""By the other Keras, and by tests of every optimizer: they are trained on fewer layouts."""
SLOW = {
    (BATCH, "killed"),
    (BATCH, "ring"),
    (BATCH, "central"),
    ("functional of tf_keras", "central"),
    ("normalization of each shard", "ring"),
    ("large table", "ring"),
}


def marks(feature, layout):
    if layout == "stopped" and feature not in SHOWN_BY_OTHERS:
        return [] if feature in QUICK else [pytest.mark.slow]
    return [pytest.mark.slow] if (feature, layout) in SLOW else [pytest.mark.long]


PAIRS = [
    (feature, layout)
    for feature in FEATURES
    for layout in LAYOUTS
    if layout != "ring" or feature not in SHOWN_BY_OTHERS
]
PAIRS += [(BATCH, layout) for layout in OF_FOUR_PARTS]
CASES = [pytest.param(*pair, marks=marks(*pair), id="-".join(pair)) for pair in PAIRS]


def train(run_dir, *options, stops_at=None):
    """Train in this process, to the end or until a step."""
    engine = recipe(run_dir, *SHORT, *options)
    done = engine.train(lambda: engine.step >= stops_at if stops_at else False)
    assert done == (stops_at is None)
    return run_dir


@functools.cache
def one_device(feature):
    """Return the run to which nothing happened."""
    return train(new_folder(), *FEATURES[feature])


@pytest.mark.parametrize(("feature", "layout"), CASES)
def test_feature_has_the_bits_of_one_device(tmp_path, feature, layout):
    options = (*FEATURES[feature], *(LAYOUTS | OF_FOUR_PARTS)[layout])
    if layout == "stopped":
        train(tmp_path, *options, "train.steps_per_loop=1", stops_at=3)
        run_dir = train(tmp_path, *options)
    elif layout == "central":
        run_dir = train(tmp_path, *options)
    else:
        run_dir = finished(*SHORT, *options)
        ended = (run_dir / "logs" / "worker-1.log").read_text()
        assert ("fault kill" in ended) == (layout == "killed")
    assert_same_run(run_dir, one_device(feature))


@pytest.mark.slow
def test_predictions_and_evaluations_have_the_bits_of_one_device():
    four = ("strategy=mirrored", "strategy.virtual_devices=4")
    outcomes = []
    for layout in ((), four):
        engine = recipe(one_device(BATCH), *SHORT, *FEATURES[BATCH], *layout)
        engine.checkpointer.restore(6)
        chunks = list(engine.predictor.predict())
        rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        outcomes.append((engine.evaluator.evaluate(lambda: False).metrics, rows))
    (metrics, rows), (other_metrics, other_rows) = outcomes
    assert metrics == other_metrics
    assert len(rows["id"]) == 360
    assert_same_bits(rows, other_rows)
