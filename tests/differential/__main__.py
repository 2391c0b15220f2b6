"""`python -m tests.differential --programs N --seed S`: compares Keras and Steadfast."""

import argparse
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from tests.differential.program import CRASHED, Outcome, Report, reason
from tests.differential.worker import prepare, run

PER_WORKER = 150
"""Programs of one process: TensorFlow frees no graph."""


def main():
    """Run programs; return the exit code: 1 if some program is different or crashes."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--programs", type=int, default=60, help="number of programs")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="seed of all programs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.programs)
    reports = []
    for report in _reports(arguments.seed, numbers, arguments.jobs):
        reports.append(report)
        print("\n".join(filter(None, (report.line(), report.text))), flush=True)
    reasons = Counter()
    for report in reports:
        reasons[f"{report.outcome.kind}: {report.outcome.signature}"] += 1
        for layout, text in report.outcome.refusals.items():
            reasons[f"refused on {layout}: {reason(text)}"] += 1
    for text, count in reasons.most_common():
        print(f"{count:5} {text}")
    return int(any(report.outcome.is_defect for report in reports))


def _reports(seed, numbers, jobs):
    """Yield the report of each program as it is done, also if its process dies."""
    spawn = multiprocessing.get_context("spawn")
    some = PER_WORKER * jobs  # a pool that replaces its processes itself may hang (Python 3.11)
    for first in range(0, len(numbers), some):
        with ProcessPoolExecutor(jobs, spawn, initializer=prepare) as pool:
            chosen = numbers[first : first + some]
            running = {pool.submit(run, seed, number): number for number in chosen}
            for done in as_completed(running):
                try:
                    yield done.result()
                except BrokenProcessPool:  # whichever it was: --first and --jobs 1 tell
                    yield Report(running[done], Outcome(CRASHED, detail="a process died"))


if __name__ == "__main__":
    sys.exit(main())
