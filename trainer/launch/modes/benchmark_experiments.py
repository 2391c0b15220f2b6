"""The experiments that mode=benchmark measures, made from the user's."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.cluster import environment
from trainer.config.rules.batch_sizes import BatchSizes, resolve_batch_sizes
from trainer.config.schema import Experiment, Summary
from trainer.strategies.strategy import Strategy

_ENDLESS_STEPS = 10**9
_MOST_SIZES = 4


def counts(number: int) -> list[int]:
    """Return the sizes to measure: all up to four, else powers of two and the last."""
    if number <= _MOST_SIZES:
        return list(range(1, number + 1))
    powers = [2**exponent for exponent in range(number.bit_length())]
    return sorted({*(power for power in powers if power < number), number})


class Variants:
    """Variants of an experiment: endless, without evaluation, checkpoints and writers.

    Each replica has the same batch in all of them.

    Attributes:
        experiment: the user's.
        strategy: its strategy, resolved.
        count: number of processes of the experiment, or of devices if it has one process.
        sizes: its batch sizes.

    Args:
        experiment: the user's.
        strategy: its strategy, resolved.
        folder: for the files of the processes.

    Raises:
        ConfigError: the batch cannot be divided between the replicas.
    """

    def __init__(self, experiment: Experiment, strategy: Strategy, folder: Path) -> None:
        self.experiment = experiment
        self.strategy = strategy
        self._folder = folder
        gpus = len(environment.visible_gpus()) if strategy.uses_gpus else 0
        if experiment.devices.gpus is not None:
            gpus = min(gpus, experiment.devices.gpus)
        self._gpus = gpus
        processes = len(strategy.process_ids(None))
        self.count = processes or strategy.num_replicas() or max(1, gpus)
        self._gpus_of_process = max(1, gpus // processes) if processes else 0
        num_replicas = processes * self._gpus_of_process or self.count
        self.sizes: BatchSizes = resolve_batch_sizes(experiment.batch, num_replicas)

    def counts(self) -> list[int]:
        """Return the numbers of processes or devices to measure."""
        return [self.count] if self.strategy.resized(1) is None else counts(self.count)

    def together(self, count: int) -> Experiment:
        """Return the run with so many processes or devices."""
        options = self.strategy.resized(count)
        replicas = count * (self._gpus_of_process or 1)
        strategy = {**self.experiment.strategy, **(options or {})}
        variant = self._endless(f"together-{count}", strategy, replicas)
        if self._gpus and self._gpus_of_process:
            # All GPUs of a machine are divided between its processes.
            variant.devices = replace(variant.devices, gpus=replicas)
        return variant

    def alone(self, number: int) -> Experiment:
        """Return the work of one replica, on a device of its own if there are GPUs."""
        device = f"GPU:{number}" if self._gpus else None
        strategy = {"_target_": "trainer.strategies.one_device.OneDevice", "device": device}
        return self._endless(f"alone-{number}", strategy, 1)

    def _endless(self, name: str, strategy: dict[str, Any], replicas: int) -> Experiment:
        source = self.experiment
        variant = copy.deepcopy(source)
        variant.name = name
        variant.runs_dir = str(self._folder)
        variant.resume = "auto"
        variant.resume_allow = []
        variant.init_from = None
        variant.strategy = strategy
        shards = self.sizes.shards
        variant.batch = replace(
            source.batch,
            global_size=None,
            per_replica=self.sizes.per_replica,
            shards=None if shards is None else shards // self.sizes.num_replicas * replicas,
        )
        variant.train = replace(
            source.train, steps=_ENDLESS_STEPS, epochs=None, steps_per_epoch=_ENDLESS_STEPS
        )
        variant.evaluate = replace(
            source.evaluate, every_steps=None, every_epochs=None, sidecar=False
        )
        variant.checkpoint = replace(
            source.checkpoint, every_steps=None, every_secs=None, every_epochs=None
        )
        variant.summary = Summary(every_steps=_ENDLESS_STEPS)
        variant.writers = {}
        return variant
