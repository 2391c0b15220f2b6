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

_GONE = {
    "estimator": "TensorFlow has had no Estimators since 2.16; strategy=parameter_server and "
    "mode=evaluate do what they did",
}

_KEYS = {
    "augment": "write augment=<choice> or augment.<option>=<value>, which is a separate group",
    "lr": "write optimizer.learning_rate=<rate>",
    "batch_size": "write batch.global_size=<examples in one step>",
    "fit": "write task=keras, which trains a model as fit does, or give "
    "loop._target_=<your function>",
    "run_eagerly": "write eager=true",
    "steps_per_execution": "write train.steps_per_loop=<steps>",
    # Where a recipe's file lacks the line, Hydra puts its keys here.
    "experiment": "begin the file of a recipe with the line '# @package _global_'",
    "autoshard": "the order of samples is the same for every strategy; remove it",
    "auto_shard_policy": "the order of samples is the same for every strategy; remove it",
    "distribute_strategy": "write strategy=<choice>",
    "jit_compile": "write jit=true",
    "mixed_precision": "write precision=<policy>",
    "gradient_accumulation_steps": "write batch.accumulate=<micro-batches>",
    "weight_decay": "choose optimizer=adamw, which is adam with weight decay",
    "clipnorm": "write train.clip_norm=<norm>",
    "clipvalue": "write train.clip_value=<value>",
    "global_clipnorm": "write train.clip_norm=<norm>",
    "num_workers": "write strategy.workers=<number>, with strategy=multi_worker or "
    "parameter_server",
    "pretrained": "write model.weights=imagenet, with model=keras_application, resnet50 or "
    "mobilenet",
    "weights": "write init_from=<file> or init_from=<run>; published weights are for "
    "model=keras_application, resnet50 and mobilenet",
    "max_to_keep": "write checkpoint.keep=<number>",
    # TF-Replicator's name for it is a replica's logical devices.
    "logical_devices": "write strategy.devices_per_replica=<number>, with strategy=mirrored or "
    "multi_worker",
    "devices_per_replica": "only strategy=mirrored and strategy=multi_worker divide a model: with "
    "central_storage and parameter_server variables are not where layers compute, a TPU's compiler "
    "places operations itself, and one_device has one device",
}


def choice_hint(group: str, choice: str, options: Iterable[str]) -> str:
    """Return what a choice is called here: "; that is strategy=mirrored here", or ""."""
    if group == "loop" and (hint := key_hint(choice)):
        return hint
    if group == "strategy":
        if reason := _GONE.get(choice.lower()):
            return f"; {reason}"
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
