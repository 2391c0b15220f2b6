"""`python -m tests.differential --programs N --seed S`: compares Keras and Steadfast."""

import argparse
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from tests.differential.outcome import CRASHED, EQUAL, Outcome, Report, reason
from tests.differential.worker import prepare, run

PER_WORKER = 150
"""Programs of one process: TensorFlow frees no graph."""
LAYOUTS = (
    "mirrored", "shards", "accumulate", "mirrored_shards", "multi_worker", "killed", "again",
)  # fmt: skip


def main():
    """Run programs; return the exit code: 1 if some program is different or crashes."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--programs", type=int, default=60, help="number of programs")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="seed of all programs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--layouts",
        default=",".join(LAYOUTS),
        help="which are compared with one device; - for none",
    )
    parser.add_argument(
        "--every", type=int, default=20, help="layouts with processes: in one of so many programs"
    )
    parser.add_argument("--no-shrink", action="store_true", help="print failures as they are")
    arguments = parser.parse_args()
    layouts = [name for name in arguments.layouts.split(",") if name != "-"]
    if strangers := set(layouts) - set(LAYOUTS):
        parser.error(
            f"--layouts: {', '.join(sorted(strangers))} must be among {', '.join(LAYOUTS)}"
        )
    task = partial(
        run,
        arguments.seed,
        layouts=layouts,
        every=arguments.every,
        shrinks=not arguments.no_shrink,
    )
    numbers = range(arguments.first, arguments.first + arguments.programs)
    reports = []
    for report in _reports(task, list(numbers), arguments.jobs):
        reports.append(report)
        print(report.line(), flush=True)
        if report.text:
            print(report.text, flush=True)
    return summarize(reports)


def _reports(task, numbers, jobs):
    """Yield the report of each program as it is done, also if its process dies."""
    with ProcessPoolExecutor(
        jobs,
        multiprocessing.get_context("spawn"),
        initializer=prepare,
        max_tasks_per_child=PER_WORKER,
    ) as pool:
        running = {pool.submit(task, number): number for number in numbers}
        for done in as_completed(running):
            try:
                yield done.result()
            except BrokenProcessPool:  # whichever it was: --first and --jobs 1 tell
                yield Report(running[done], Outcome(CRASHED, detail="a process died"))


def summarize(reports):
    """Print how many programs came out how, and why some were refused; return the exit code."""
    kinds = Counter(report.outcome.kind for report in reports)
    print("\n" + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    reasons = Counter(
        (report.outcome.kind, report.outcome.signature)
        for report in reports
        if report.outcome.kind != EQUAL
    )
    for (kind, text), count in reasons.most_common():
        print(f"{count:5} {kind}: {text}")
    refused = Counter(
        (layout, reason(text))
        for report in reports
        for layout, text in report.outcome.refusals.items()
    )
    for (layout, text), count in refused.most_common():
        print(f"{count:5} refused on {layout}: {text}")
    secs = sum(report.outcome.secs for report in reports)
    print(f"{secs / max(len(reports), 1):.1f} s a program")
    return int(any(report.outcome.is_defect for report in reports))


if __name__ == "__main__":
    sys.exit(main())
