"""How training scales over processes: `python -m benchmarks.scaling [model ...] [--workers N] ...`.

N processes, two by default, each on one core, take steps together. The ceiling is their speed
without any communication; the bound is the least time that the bytes of a ring all-reduce take on
this machine's loopback (Patarasuk and Yuan 2009).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import interleave
from benchmarks.scaling.contestants import CEILING, CONTESTANTS, JOBS, TUTORIAL
from benchmarks.scaling.team import Team, network
from trainer.cluster import discovery, spec

LINK = "link"


def measure(name: str, model: str, steps: int, workers: int) -> dict[str, Any]:
    """Measure a contestant once.

    Returns:
        ms: milliseconds a step; cpu_ms: processor time of it; sent: bytes sent a step, with those
        of TCP, or None; loss; gradient_bytes. Means over the processes.
    """
    together = CONTESTANTS[name].together
    clusters = discovery.local_clusters(
        [spec.ProcessId("worker", index) for index in range(workers)]
    )
    with network() as namespace, tempfile.TemporaryDirectory() as folder, Team(namespace) as team:
        for cluster in clusters:
            own = Path(folder) if together else Path(folder, str(cluster.process_id))
            own.mkdir(exist_ok=True)
            environment = {"TF_CONFIG": cluster.tf_config()} if together else {}
            team.start(
                "benchmarks.scaling.worker",
                name,
                model,
                str(steps),
                str(own),
                environment=environment,
            )
        team.hear()
        team.tell("go")
        reports = team.hear()
    means = {
        key: statistics.fmean(report[key] for report in reports) for key in ("ms", "cpu_ms", "loss")
    }
    sent = [report["sent"] for report in reports]
    # Each has counted the bytes of all.
    return {
        **means,
        "sent": None if None in sent else statistics.fmean(sent) / workers,
        "gradient_bytes": reports[0]["gradient_bytes"],
    }


def measure_link() -> dict[str, float]:
    """Measure bytes a second over loopback, each way while both are used, and of memory copies."""
    with network() as namespace, Team(namespace) as team:
        for rank in range(2):
            team.start("benchmarks.scaling.link", str(rank))
        port, _ = team.hear()
        team.tell(port)
        reports = team.hear()
    return {key: statistics.fmean(report[key] for report in reports) for key in ("link", "memory")}


def summarise(results: dict[str, list[dict[str, Any]]], workers: int) -> dict[str, Any]:
    """Return the medians of all rounds, and what follows from them."""
    links = results[LINK]
    rows = {
        name: {
            "ms": statistics.median(report["ms"] for report in rounds),
            "ms_of_rounds": [report["ms"] for report in rounds],
            "sent_bytes": None
            if rounds[0]["sent"] is None
            else statistics.median(report["sent"] for report in rounds),
            **{
                key: statistics.median(report[key] for report in rounds)
                for key in ("cpu_ms", "loss")
            },
        }
        for name, rounds in results.items()
        if name != LINK
    }
    for row in rows.values():
        row["times_tutorial"] = rows[TUTORIAL]["ms"] / row["ms"] if TUTORIAL in rows else None
        row["share_of_ceiling"] = rows[CEILING]["ms"] / row["ms"] if CEILING in rows else None
    gradient_bytes = next(
        rounds[0]["gradient_bytes"] for name, rounds in results.items() if name != LINK
    )
    ring_bytes = 2 * (workers - 1) / workers * gradient_bytes
    rates = {key: statistics.median(report[key] for report in links) for key in ("link", "memory")}
    return {
        "contestants": rows,
        "gradient_bytes": gradient_bytes,
        "ring_bytes": ring_bytes,
        **{f"{key}_bytes_per_sec": value for key, value in rates.items()},
        **{f"{key}_bound_ms": 1000 * ring_bytes / value for key, value in rates.items()},
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
            CONTESTANTS[name].title,
            f"{row['ms']:.1f}",
            f"{min(row['ms_of_rounds']):.1f} to {max(row['ms_of_rounds']):.1f}",
            "" if row["times_tutorial"] is None else f"{row['times_tutorial']:.2f}",
            "" if row["share_of_ceiling"] is None else f"{row['share_of_ceiling']:.0%}",
            f"{row['cpu_ms']:.1f}",
            "" if row["sent_bytes"] is None else f"{row['sent_bytes'] / 1e6:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", bounds(summary)])


def bounds(summary: dict[str, Any]) -> str:
    """Return the limits of the machine."""
    ring = summary["ring_bytes"] / 1e6
    link = summary["link_bytes_per_sec"] / 1e9
    memory = summary["memory_bytes_per_sec"] / 1e9
    lines = [
        f"Gradients: {summary['gradient_bytes'] / 1e6:.2f} MB in float32; "
        f"a ring sends {ring:.2f} MB from each process, {ring / 2:.2f} MB in 16 bits.",
        f"Loopback: {link:.2f} GB/s each way when both are used, "
        f"so at least {summary['link_bound_ms']:.1f} ms a step, "
        f"{summary['link_bound_ms'] / 2:.1f} ms in 16 bits.",
        f"Memory: {memory:.2f} GB/s copied by each process, "
        f"so at least {summary['memory_bound_ms']:.1f} ms.",
    ]
    if CEILING in summary["contestants"]:
        ceiling = summary["contestants"][CEILING]["ms"]
        exact, short = (ceiling + summary["link_bound_ms"] / parts for parts in (1, 2))
        lines.append(
            f"Ceiling and loopback one after the other: {exact:.1f} ms "
            f"({ceiling / exact:.0%} of the ceiling), in 16 bits {short:.1f} ms "
            f"({ceiling / short:.0%})."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0]
    )
    parser.add_argument("models", nargs="*", metavar="model", help=f"default: {' '.join(JOBS)}")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="how many are measured; default: by model")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="default: %(default)s")
    args = parser.parse_args()
    names = args.contestants.split(",")
    for chosen, choices in ((args.models, JOBS), (names, CONTESTANTS)):
        if unknown := [name for name in chosen if name not in choices]:
            parser.error(f"{unknown[0]}: choose among {', '.join(choices)}")
    summaries = {}
    for model in args.models or JOBS:
        job = JOBS[model]
        steps = args.steps or job.steps
        contenders = {LINK: measure_link} | {
            name: partial(measure, name, model, steps, args.workers) for name in names
        }
        summaries[model] = summarise(interleave(contenders, args.rounds), args.workers)
        title = (
            f"{model}, {job.optimizer}, {args.workers} processes of one core, "
            f"{job.per_worker} images each"
        )
        print(
            table(f"{title}: {args.rounds} rounds of {steps} steps", summaries[model]),
            end="\n\n",
            flush=True,
        )
    print(
        json.dumps(
            {
                "benchmark": "scaling",
                "workers": args.workers,
                "rounds": args.rounds,
                "models": summaries,
            }
        )
    )


if __name__ == "__main__":
    main()
