"""What TensorFlow, Keras and TF-Replicator call a choice or a key: the answer to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_STRATEGIES = {
    "OneDeviceStrategy": "one_device",
    "default": "one_device",
    "MirroredStrategy": "mirrored",
    "MultiGpuReplicator": "mirrored",
    "multi_gpu": "mirrored",
    "CentralStorageStrategy": "central_storage",
    "MultiWorkerMirroredStrategy": "multi_worker",
    "CollectiveAllReduceStrategy": "multi_worker",
    "MultiWorkerReplicator": "multi_worker",
    "ParameterServerStrategy": "parameter_server",
    "ps": "parameter_server",
    "TPUStrategy": "tpu",
    "TpuReplicator": "tpu",
}

_KEYS = {
    "augment": "write augment=<choice> or augment.<option>=<value>, which is a separate group",
    "lr": "write optimizer.learning_rate=<rate>",
    "batch_size": "write batch.global_size=<examples in one step>",
    "fit": "write task=keras, which trains a model as fit does, or give "
    "loop._target_=<your function>",
    "steps_per_execution": "write train.steps_per_loop=<steps>",
    # Where a recipe's file lacks the line, Hydra puts its keys here.
    "experiment": "begin the file of a recipe with the line '# @package _global_'",
    "jit_compile": "write jit=true",
    "mixed_precision": "write precision=<policy>",
    "gradient_accumulation_steps": "write batch.accumulate=<micro-batches>",
    "weight_decay": "choose optimizer=adamw, which is adam with weight decay",
    "clipnorm": "write train.clip_norm=<norm>",
    "num_workers": "write strategy.workers=<number>, with strategy=multi_worker or "
    "parameter_server",
    "pretrained": "write model.weights=imagenet, with model=keras_application, resnet50 or "
    "mobilenet",
}


def choice_hint(group: str, choice: str, options: Iterable[str]) -> str:
    """Return what a choice is called here: "; that is strategy=mirrored here", or ""."""
    if group == "loop" and (hint := key_hint(choice)):
        return hint
    if group == "strategy":
        names = {name.lower(): here for name, here in _STRATEGIES.items()}
        word = choice.rpartition(".")[2].lower()
        if near := difflib.get_close_matches(word, names, n=1, cutoff=0.85):
            return f"; that is {group}={names[near[0]]} here"
    module, _, name = choice.rpartition(".")
    if module.endswith(".applications"):
        return f"; that is model=keras_application model.name={name} here"
    if module and name.lower() in options:
        return f"; that is {group}={name.lower()} here"
    return f"; a dotted path is written {group}._target_={choice}" if module else ""


def key_hint(key: str) -> str:
    """Return what to write instead of another library's key, or ""."""
    hint = _KEYS.get(key.lower())
    return f"; {hint}" if hint else ""
