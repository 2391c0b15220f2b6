"""Trains the programs by `fit` and by Steadfast, with three seeds, and prints how good they are.

python compare.py               # all, which takes a quarter of an hour
python compare.py vae cutmix    # some
"""

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf
import yaml

from trainer.notebook import run

SEEDS = (0, 1, 2)
METRICS = {
    "mnist_convnet": "accuracy",
    "cutmix": "accuracy",
    "transfer": "accuracy",
    "vae": "loss",
    "wgan_gp": "energy_score",
    "distillation": "accuracy",
    "segmentation": "accuracy",
    "text_transformer": "accuracy",
    "mini_gpt": "loss",
    "structured_data": "accuracy",
    "recommender": "rmse",
    "weather": "loss",
}
RECIPES = {
    "transfer": ["transfer_base", "transfer_head", "transfer_fine_tune"],
    "distillation": ["distillation_teacher", "distillation"],
}
"""Recipes of a program that has several: each starts with the weights of the one before."""


def by_fit(program, seed):
    """Return the metrics of a program that `fit` has trained."""
    keras.utils.set_random_seed(seed)
    model = None
    for recipe in RECIPES.get(program, [program]):
        config = yaml.safe_load(Path("conf", "experiment", f"{recipe}.yaml").read_text())
        train, test = data_of(config["dataset"], config["batch"]["global_size"])
        before, model = model, function(config["model"])()
        if before is not None:
            hand_over(before, model)
        model.fit(train, epochs=config["train"]["epochs"], verbose=0)
    return model.evaluate(test, verbose=0, return_dict=True)


def function(node):
    """Return the function that a node of a recipe names."""
    module, _, name = node["_target_"].rpartition(".")
    return getattr(import_module(module), name)


def data_of(node, size):
    """Return the batches to train and to test on."""
    if "data" not in node:
        return function(node["train"])(), function(node["test"])()
    train, test = (
        tf.data.Dataset.from_tensor_slices(part if len(part) > 1 else part[0])
        for part in function(node["data"])()
    )
    return train.shuffle(train.cardinality()).batch(size), test.batch(size)


def hand_over(before, model):
    """Give the layers of a model the weights that those of the same name had before."""
    known = {layer.name: layer for layer in [before, *before.layers]}
    for layer in model.layers:
        if layer.weights and layer.name in known:
            layer.set_weights(known[layer.name].get_weights())


def by_steadfast(program, seed):
    """Return the metrics of a program that Steadfast has trained."""
    weights = []
    with TemporaryDirectory() as folder:
        for recipe in RECIPES.get(program, [program]):
            result = run(f"experiment={recipe}", f"seed={seed}", f"runs_dir={folder}", *weights)
            weights = [f"init_from={result.directory}"]
        return result.metrics


def main():
    """Print a row for each program."""
    rows = []
    for program in sys.argv[1:] or METRICS:
        metric = METRICS[program]
        values = [
            [float(train(program, seed)[metric]) for seed in SEEDS]
            for train in (by_fit, by_steadfast)
        ]
        figures = [f"{np.mean(v):.3f} ± {np.std(v, ddof=1):.3f}" for v in values]
        rows.append(f"| {program} | {metric} | {' | '.join(figures)} |")
        print(rows[-1], flush=True)
    print("\n| program | metric | fit | Steadfast |\n| --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
