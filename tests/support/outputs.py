"""What a trained run predicts and exports, made in the test process."""

import csv
import os
import sys

import numpy as np
import tensorflow as tf

from tests.support.processes import run_program
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.config.instantiate import instantiate
from trainer.runs import prediction_table
from trainer.worker.export import export
from trainer.worker.predict.predict import predict
from trainer.worker.run import SavedRun
from trainer.worker.training import TrainingRun

_QUIET = Channel(lambda message: None)


def predicted_rows(run_dir, overrides):
    """Predict the test split with the newest checkpoint; return the rows of the table."""
    experiment = compose([*overrides, "mode=predict"])
    run = TrainingRun(experiment, run_dir, _QUIET)
    run.engine.checkpointer.restore_latest()
    step = int(run.state.step.numpy())
    assert predict(run, step, lambda: False)
    table = prediction_table.requested_table(experiment, run_dir, step)
    with table.path.open(newline="") as file:
        return list(csv.DictReader(file))


def export_run(run_dir, *overrides):
    """Export the newest checkpoint; return the directory."""
    export.run(SavedRun(compose([*overrides, "mode=export"]), run_dir, _QUIET))
    (directory,) = (run_dir / "export").glob("[!.]*")
    return directory


def served(directory, name="serving_default"):
    """Return a function that an export serves."""
    return tf.saved_model.load(str(directory / "saved_model")).signatures[name]


def exported_outputs(run_dir, overrides, batch_size):
    """Export the newest checkpoint; return what it makes of the test split, and the card."""
    directory = export_run(run_dir, *overrides, "export.weights=null")
    function = served(directory)
    dataset = instantiate(compose(overrides).dataset, "dataset")
    batch = dataset.test.fetch(tf.range(dataset.test.num_examples, dtype=tf.int64))
    # In a graph, as in the run: there a division by 255 is a product with its inverse.
    transform = tf.function(lambda batch: dataset.transform(batch, None), autograph=False)
    features = transform(batch)["features"]
    count = len(features)
    filled = tf.concat([features, tf.repeat(features[:1], -count % batch_size, axis=0)], axis=0)
    parts = [function(features=part) for part in tf.split(filled, len(filled) // batch_size)]
    outputs = {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}
    return outputs, (directory / "MODEL_CARD.md").read_text()


def run_program_of_card(directory):
    """Run the program that a model card shows, without the trainer; return it and its output."""
    card = (directory / "MODEL_CARD.md").read_text()
    program = card.partition("```python\n")[2].partition("```")[0]
    python = (sys.executable, "-I", "-c", program)
    return program, run_program(*python, cwd=directory, env={"PATH": os.defpath})
