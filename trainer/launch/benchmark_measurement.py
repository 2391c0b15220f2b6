"""Measures the variants of an experiment, one after the other, for mode=benchmark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch.benchmark_experiments import Variants
from trainer.launch.benchmark_limit import stalls
from trainer.launch.benchmark_processes import BenchmarkProcesses, MeasurementError
from trainer.launch.fork_server import ForkServer
from trainer.runs.benchmark_record import BenchmarkRecord, Size
from trainer.strategies.base import Strategy

_TOP_KERNELS = 10


@dataclass(frozen=True)
class Measurement:
    """The measurements of one command.

    Attributes:
        experiment: what is measured.
        strategy: its strategy, resolved.
        variants: what is measured of it.
        server: forks the processes.
    """

    experiment: Experiment
    strategy: Strategy
    variants: Variants
    server: ForkServer

    def measure(self) -> BenchmarkRecord:
        """Measure all sizes, the kernels, and changes that may help; tell the user of each.

        Raises:
            ConfigError: a process finds something wrong with the configuration.
            MeasurementError: a process has failed.
        """
        counts = self.variants.counts()
        is_cluster = bool(self.strategy.process_ids(None))
        sizes = []
        for count in counts:
            size, kernels = self.size(count, with_kernels=count == counts[-1])
            sizes.append(size)
            print(
                f"{count}: {size.examples_per_sec:,.0f} examples/s, "
                f"{1000 * size.step_secs:.2f} ms a step; "
                f"without exchange {1000 * size.alone_step_secs:.2f} ms",
                flush=True,
            )
        record = BenchmarkRecord(
            strategy=str(self.experiment.choices["strategy"]),
            unit="processes" if is_cluster else "devices",
            per_replica=self.variants.sizes.per_replica,
            secs=self.experiment.benchmark.secs,
            eager=self.experiment.eager,
            sizes=sizes,
            kernels=dict(list(kernels.items())[:_TOP_KERNELS]),
        )
        return record if stalls(record) else replace(record, gains=self._gains(sizes[0]))

    def size(self, count: int, *, with_kernels: bool = False) -> tuple[Size, dict[str, float]]:
        """Measure the run with so many processes or devices, then its replicas alone.

        Args:
            count: how many.
            with_kernels: whether seconds of a step by kind of kernel are returned too.

        Raises:
            ConfigError: a process finds something wrong with the configuration.
            MeasurementError: a process has failed.
        """
        run = self.variants.together(count)
        together, kernels = self._processes([run], with_kernels=with_kernels)
        replicas = together[0]["replicas"]
        alone = together
        if replicas > 1:
            alone, _ = self._processes([self.variants.alone(number) for number in range(replicas)])
        return self._summary(count, together, alone), kernels

    def _summary(
        self, count: int, together: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]
    ) -> Size:
        first = together[0]
        replicas = first["replicas"]
        gradients = first["gradient_bytes"]
        planned, text = 0.0, "nothing: there is one replica"
        if replicas > 1:
            planned, text = self.strategy.traffic(
                gradients,
                first["weight_bytes"],
                replicas,
                in_tree=bool(self.experiment.batch.shards),
            )
        sent = [report["network_bytes"] for report in together]
        counted = len(together) > 1 and first["network_bytes"] is not None
        gpus = [
            report["gpu_memory_peak_mib"] for report in together if "gpu_memory_peak_mib" in report
        ]
        return Size(
            count=count,
            replicas=replicas,
            step_secs=_mean(together, "step_secs"),
            examples_per_sec=_mean(together, "examples_per_sec"),
            alone_step_secs=_mean(alone, "step_secs"),
            processor_secs=_mean(together, "processor_secs"),
            input_wait=_mean(together, "input_wait"),
            gradient_bytes=gradients,
            bound_bytes=2 * (replicas - 1) / replicas * gradients,
            planned_bytes=planned,
            traffic=text,
            # Each process has counted the bytes of all.
            network_bytes=fmean(sent) / replicas if counted else None,
            latency_secs=first.get("latency_secs"),
            exchange_secs=first.get("exchange_secs"),
            peak_memory_mib=max(report["peak_memory_mib"] for report in together),
            gpu_memory_mib=max(gpus, default=None),
        )

    def _gains(self, base: Size) -> dict[str, float]:
        """Return the examples per second of changes as multiples of those without."""
        gains = {}
        changes = {"batch": self.variants.with_double_batch(), "compile": self.variants.compiled()}
        for name, change in changes.items():
            if change is None:
                continue
            try:
                reports, _ = self._processes([change])
            except (ConfigError, MeasurementError) as error:
                print(f"{change.name}: left out: {error}", flush=True)
                continue
            gains[name] = _mean(reports, "examples_per_sec") / base.examples_per_sec
            print(f"{change.name}: {gains[name]:.2f} times the examples/s of {base.count}")
        return gains

    def _processes(
        self, runs: Sequence[Experiment], *, with_kernels: bool = False
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        limit_secs = self.experiment.watchdog.compile_secs
        with BenchmarkProcesses(self.server, limit_secs) as processes:
            for run in runs:
                processes.start(run)
            reports = processes.measure()
            kernels = {}
            if with_kernels:
                try:
                    kernels = processes.kernels()
                except MeasurementError as error:  # no profiler is worth the other figures
                    print(f"kernels: left out: {error}", flush=True)
            for warning in processes.warnings:
                print(warning, file=sys.stderr)
            return reports, kernels


def _mean(reports: Sequence[dict[str, Any]], key: str) -> float:
    return fmean(report[key] for report in reports)
