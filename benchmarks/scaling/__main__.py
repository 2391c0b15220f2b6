"""How training scales over processes: `python -m benchmarks.scaling [model ...] [--workers N] ...`.

N processes, two by default, take steps together. Steadfast is measured by what `mode=benchmark`
measures with; its ceiling is the speed of as many processes without any communication. The bound is
the least time that the bytes of a ring all-reduce take on the machine's network (Patarasuk and
Yuan 2009). With `--hosts` the processes are divided between two hosts, each with its own network.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import interleave
from benchmarks.scaling.hosts import host_of, two_hosts
from benchmarks.scaling.jobs import JOBS, OF_TUTORIAL, STEADFAST, TITLES, Job
from benchmarks.scaling.team import Team, network
from trainer.cli.compose import compose
from trainer.cluster import discovery, spec
from trainer.launch.modes.benchmark import measure_size
from trainer.launch.modes.benchmark_processes import Host, Variants
from trainer.launch.processes.fork_server import ForkServer
from trainer.launch.resolved_run import resolve

LINK = "link"


def measure_steadfast(
    name: str, job: Job, workers: int, secs: float, server: ForkServer, hosts: Sequence[Host] = ()
) -> dict[str, Any]:
    """Measure a contestant of Steadfast's once.

    Returns:
        ms: milliseconds a step; ceiling_ms: the same without exchange; cpu_ms: processor time of
        it; sent: bytes sent a step, with those of TCP, or None; gradient_bytes. Means over the
        processes.
    """
    _, overrides = STEADFAST[name]
    experiment = compose([*job.overrides(workers, secs), *overrides])
    strategy = resolve(experiment).strategy
    with tempfile.TemporaryDirectory() as folder:
        variants = Variants(experiment, strategy, Path(folder))
        size = measure_size(variants, workers, server, hosts)
    return {
        "ms": 1000 * size.step_secs,
        "ceiling_ms": 1000 * size.alone_step_secs,
        "cpu_ms": 1000 * size.processor_secs,
        "sent": size.network_bytes,
        "gradient_bytes": size.gradient_bytes,
    }


def measure_tutorial(
    name: str, model: str, workers: int, secs: float, hosts: Sequence[Host] = ()
) -> dict[str, Any]:
    """Measure the tutorial's loop once; return the same, without the ceiling."""
    process_ids = [spec.ProcessId("worker", index) for index in range(workers)]
    clusters = discovery.local_clusters(process_ids)
    places = [host_of(index, workers, hosts) if hosts else None for index in range(workers)]
    if hosts:
        addresses = [f"{place.address}:{20_000 + i}" for i, place in enumerate(places) if place]
        clusters = discovery.clusters_of(process_ids, addresses, "the benchmark")
    with network() as namespace, Team(namespace) as team:
        for cluster, place in zip(clusters, places, strict=True):
            team.start(
                "benchmarks.scaling.tutorial",
                *(name, model, str(secs)),
                environment={"TF_CONFIG": cluster.tf_config()},
                namespace=place and place.namespace,
            )
        team.hear()
        team.tell("go")
        reports = team.hear()
    sent = [report["sent"] for report in reports]
    return {
        **{key: statistics.fmean(report[key] for report in reports) for key in ("ms", "cpu_ms")},
        # Each has counted the bytes of all on its host.
        "sent": None if None in sent else statistics.fmean(sent) * max(1, len(hosts)) / workers,
    }


def measure_link(hosts: Sequence[Host] = ()) -> dict[str, float]:
    """Measure bytes a second over the network, each way while both are used, and of copies."""
    with network() as namespace, Team(namespace) as team:
        for rank in range(2):
            address = hosts[0].address if hosts else "127.0.0.1"
            place = hosts[rank].namespace if hosts else None
            team.start("benchmarks.scaling.link", str(rank), address, namespace=place)
        port, _ = team.hear()
        team.tell(port)
        reports = team.hear()
    return {key: statistics.fmean(report[key] for report in reports) for key in ("link", "memory")}


def summarize(results: dict[str, list[dict[str, Any]]], workers: int) -> dict[str, Any]:
    """Return the medians of all rounds, and what follows from them."""

    def medians(name: str, key: str) -> float | None:
        values = [report.get(key) for report in results[name]]
        return None if None in values else statistics.median(values)  # type: ignore[type-var]

    names = [name for name in results if name != LINK]
    ceilings = [
        report["ceiling_ms"] for name in names for report in results[name] if name in STEADFAST
    ]
    ceiling = statistics.median(ceilings) if ceilings else None
    tutorial = medians("tutorial", "ms") if "tutorial" in results else None
    rows = {}
    for name in names:
        own = medians(name, "ms")
        assert own is not None
        limit = medians(name, "ceiling_ms") or ceiling
        rows[name] = {
            "ms": own,
            "ms_of_rounds": [report["ms"] for report in results[name]],
            "cpu_ms": medians(name, "cpu_ms"),
            "sent_bytes": medians(name, "sent"),
            "times_tutorial": None if tutorial is None else tutorial / own,
            "share_of_ceiling": None if limit is None else limit / own,
        }
    sizes = [results[name][0]["gradient_bytes"] for name in names if name in STEADFAST]
    rates = {key: medians(LINK, key) for key in ("link", "memory")}
    return {
        "contestants": rows,
        "ceiling_ms": ceiling,
        "ring_bytes": 2 * (workers - 1) / workers * sizes[0] if sizes else None,
        **{f"{key}_bytes_per_sec": value for key, value in rates.items()},
    }


def table(title: str, summary: dict[str, Any]) -> str:
    """Format a summary; MB are 10^6 bytes."""
    lines = [
        title,
        "",
        "| | ms a step | range | times the tutorial's speed | share of the ceiling "
        "| processor time of each, ms | MB sent by each |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in summary["contestants"].items():
        cells = [
            TITLES[name],
            f"{row['ms']:.1f}",
            f"{min(row['ms_of_rounds']):.1f} to {max(row['ms_of_rounds']):.1f}",
            "" if row["times_tutorial"] is None else f"{row['times_tutorial']:.2f}",
            "" if row["share_of_ceiling"] is None else f"{row['share_of_ceiling']:.0%}",
            f"{row['cpu_ms']:.1f}",
            "" if row["sent_bytes"] is None else f"{row['sent_bytes'] / 1e6:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *bounds(summary)])


def bounds(summary: dict[str, Any]) -> list[str]:
    """Return the limits of the machine, a line each."""
    link = summary["link_bytes_per_sec"]
    memory = summary["memory_bytes_per_sec"]
    lines = [
        f"Network: {link / 1e9:.2f} GB/s each way when both are used. "
        f"Memory: {memory / 1e9:.2f} GB/s copied by each process."
    ]
    if summary["ring_bytes"] is None:
        return lines
    ring = summary["ring_bytes"]
    ceiling = summary["ceiling_ms"]
    exact, short = (1000 * ring / parts / link for parts in (1, 2))
    return [
        f"Ceiling: {ceiling:.1f} ms without any exchange. A ring sends {ring / 1e6:.2f} MB "
        f"from each process, {ring / 2e6:.2f} MB in 16 bits.",
        *lines,
        f"By network that is at least {exact:.1f} ms a step, {short:.1f} ms in 16 bits; "
        f"by memory {1000 * ring / memory:.1f} ms.",
        f"Ceiling and network one after the other: {ceiling + exact:.1f} ms "
        f"({ceiling / (ceiling + exact):.0%} of the ceiling), in 16 bits {ceiling + short:.1f} ms "
        f"({ceiling / (ceiling + short):.0%}).",
    ]


def main() -> None:
    args = _arguments()
    os.environ.pop("TF_CONFIG", None)
    summaries = {}
    with ExitStack() as stack:
        server = ForkServer.acquire()
        stack.callback(server.release)
        hosts = []
        if args.hosts is not None:
            gbit = None if args.hosts == "veth" else float(args.hosts)
            hosts = stack.enter_context(two_hosts(gbit))
        for model in args.models or JOBS:
            job = JOBS[model]
            contenders: dict[str, Any] = {LINK: partial(measure_link, hosts)}
            for name in args.contestants.split(","):
                if name in STEADFAST:
                    contenders[name] = partial(
                        measure_steadfast, name, job, args.workers, args.secs, server, hosts
                    )
                elif model in OF_TUTORIAL:
                    contenders[name] = partial(
                        measure_tutorial, name, model, args.workers, args.secs, hosts
                    )
            summaries[model] = summarize(interleave(contenders, args.rounds), args.workers)
            places = "one host" if args.hosts is None else f"two hosts ({args.hosts})"
            title = (
                f"{model}, {job.optimizer}, {args.workers} processes on {places}, "
                f"{job.per_worker} images each: {args.rounds} rounds of {args.secs:g} s"
            )
            print(table(title, summaries[model]), end="\n\n", flush=True)
    content = {
        "benchmark": "scaling",
        "workers": args.workers,
        "hosts": args.hosts,
        "rounds": args.rounds,
    }
    print(json.dumps({**content, "models": summaries}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0]
    )
    parser.add_argument("models", nargs="*", metavar="model", help=f"default: {' '.join(JOBS)}")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument(
        "--hosts", choices=("veth", "1", "10"), help="two hosts; the cable's rate, Gbit/s"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--contestants", default=",".join(TITLES), help="default: %(default)s")
    args = parser.parse_args()
    for chosen, choices in ((args.models, JOBS), (args.contestants.split(","), TITLES)):
        if unknown := [name for name in chosen if name not in choices]:
            parser.error(f"{unknown[0]}: choose among {', '.join(choices)}")
    return args


if __name__ == "__main__":
    main()
