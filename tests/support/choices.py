"""The choices of `conf/`, and what they need besides."""

from dataclasses import fields, is_dataclass
from pathlib import Path

from trainer.config.schema import GROUPS

CONF = Path(__file__).resolve().parents[2] / "conf"
GAN_CONF = Path(__file__).parent / "gan_conf"
"""The choices of `toy_gan`, for `--config-dir`."""


def listed(group):
    """Return the choices of a group, as an error message lists them."""
    return ", ".join(sorted(file.stem for file in (CONF / group).glob("*.yaml")))


def keys(schema, path=""):
    """Return the dotted keys of a part of the schema; each has an explanation."""
    names = []
    for item in fields(schema):
        value = getattr(schema, item.name)
        if is_dataclass(value):
            names += keys(value, f"{path}{item.name}.")
        elif item.name not in (*GROUPS, "choices"):
            assert item.metadata["help"], item.name
            names.append(f"{path}{item.name}")
    return names


NEEDED = {
    "dataset=arrays": ["dataset.data._target_=tests.programs.columns.pixels"],
    "callbacks=keras": ["callbacks.keras.callback._target_=keras.callbacks.LambdaCallback"],
    "dataset=stream": [
        "dataset.train._target_=tests.support.toy_streams.train",
        "dataset.test._target_=tests.support.toy_streams.test",
        "dataset.num_classes=10",
    ],
    "model=saved": [f"model.path={CONF / 'config.yaml'}"],
    "model=keras_hub": [f"model.preset={CONF}"],
    "env=cartpole": ["train.steps_per_epoch=10"],
    "env=catch": ["train.steps_per_epoch=10"],
    "env=pendulum": ["train.steps_per_epoch=10"],
    "buffer=queue": ["env=catch", "train.steps_per_epoch=10"],
    "buffer=replay": ["env=catch", "train.steps_per_epoch=10"],
    "dataset=indexed": [
        "dataset.train_source._target_=tests.support.toy_sources.Records",
        "dataset.fields.num_classes=3",
    ],
    "dataset=mixture": ["+dataset@dataset.sources.digits=digits"],
    "metrics=gan_quality": ["metrics.gan_quality.classifier=."],
}
"""The overrides of values that a choice leaves open."""
