"""Draws the records of the benchmarks, benchmarks/results.json: `fire.svg`, `step-time.svg`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from statistics import median
from typing import Any

from benchmarks.fire.contenders import CONTENDERS, outcomes
from docs.pictures.support import ROOT, Picture, card, label

MACHINE = "2 CPU cores, no GPU, TensorFlow 2.21, Python 3.11."
WIDTH, ROW = 860, 22
NAME, EVERY, WEIGHTS, EXAMPLES, USEFUL, FULL = 226, 282, 318, 450, 590, 200
"""Where the columns of `fire.svg` are, and the length of a bar of 100 %."""
LEFT, PANEL = 136, 142


def bar(x: float, y: float, values: list[float], scale: float, color: str, text: str) -> list[str]:
    """Return a bar to the median of the values, a line along their range, and a text."""
    wide, least, most = (scale * value for value in (median(values), min(values), max(values)))
    return [
        f'<rect x="{x}" y="{y + 3}" width="{wide:.1f}" height="14" class="{color}"/>',
        f'<path d="M{x + least:.1f},{y + 19}H{x + most:.1f}" class="stroke-faint"/>',
        label(x + wide + 5, y + 14, text, "faint", font_size=12),
    ]


def outcome_row(outcome: dict[str, Any], y: float) -> list[str]:
    """Return a row of `fire.svg`: how the runs ended, and their useful time."""
    color = "blue" if outcome["contender"] in ("steadfast", "command") else "gray"
    every = label(EVERY, y + 14, f"{outcome['every']:g} s", text_anchor="end")
    if not any(outcome["useful"]):
        return [every, label(WEIGHTS, y + 14, "does not end", "red")]
    apart, wrong = outcome["difference"], outcome["misplaced"]
    weights = f"differ by {apart:.2g}" if apart else "the same bits"
    useful = f"{100 * median(outcome['useful']):.0f} %"
    return [
        every,
        label(WEIGHTS, y + 14, weights, "red" if apart else "green", font_weight=600),
        label(EXAMPLES, y + 14, f"{100 * wrong:.0f} %" if wrong else "none"),
        *bar(USEFUL, y, outcome["useful"], FULL, color, useful),
    ]


def fire(rows: list[dict[str, Any]]) -> str:
    """Draw what became of runs with processes killed at random."""
    rounds = len({row["seed"] for row in rows})
    title = "Processes killed at random: does the run end with the same weights?"
    texts = {
        "kill every": EVERY - 55, "final weights": WEIGHTS, "examples missed": EXAMPLES,
        "useful time": USEFUL,
    }  # fmt: skip
    body = [label(14, 28, title, font_size=15, font_weight=600)]
    body += [label(x, 54, text, "faint", font_size=12) for text, x in texts.items()]
    y = 62.0
    fired = [outcome for outcome in outcomes(rows) if outcome["every"]]
    for processes, group in groupby(fired, lambda outcome: outcome["processes"]):
        body.append(label(14, y + 16, f"{processes} process{'es' * (processes > 1)}", "faint"))
        for name, parts in groupby(group, lambda outcome: outcome["contender"]):
            contender, y = CONTENDERS[name], y + 6
            saves = f"saves {contender.setting}"
            body.append(label(NAME, y + 14, contender.title, text_anchor="end"))
            body.append(label(NAME, y + 31, saves, "faint", text_anchor="end", font_size=12))
            for outcome in parts:
                body += outcome_row(outcome, y)
                y += ROW
        y += 10
    notes = (
        f"{MACHINE} Each row: {rounds} round{'s' * (rounds > 1)}. Bars: medians.",
        "Final weights: compared with those of the program's own uninterrupted run. "
        "Useful time: the time of its fastest run over that of this one.",
    )
    for number, note in enumerate(notes):
        body.append(label(14, y + 16 + 18 * number, note, "faint", font_size=12))
    return card(WIDTH, round(y) + 48, title, body)


def step_time(jobs: dict[str, dict[str, list[float]]]) -> str:
    """Draw the time of a step, a panel for each job."""
    title, names = "Time of a training step, in ms", list(next(iter(jobs.values())))
    top, bottom = 84, 84 + len(names) * ROW
    body = [label(14, 28, title, font_size=15, font_weight=600)]
    for row, name in enumerate(names):
        body.append(label(LEFT - 12, top + row * ROW + 14, name, text_anchor="end"))
    for column, (job, results) in enumerate(jobs.items()):
        x = LEFT + column * PANEL
        model, _, rest = job.partition(", ")
        body += [label(x, 54, model, font_weight=600), label(x, 72, rest, "faint", font_size=12)]
        longest = max(max(median(values) * 1.4, *values) for values in results.values())
        for row, values in enumerate(results.values()):
            color, text = "gray" if row else "blue", f"{median(values):.3g}"
            scale = (PANEL - 8) / longest  # a number needs room behind its bar
            body += bar(x, top + row * ROW, values, scale, color, text)
    rounds = max(len(values) for results in jobs.values() for values in results.values())
    note = f"{MACHINE} Bars: medians of {rounds} rounds; lines: ranges. Less is better."
    body.append(label(14, bottom + 26, note, "faint", font_size=12))
    return card(WIDTH, bottom + 40, title, body)


def pictures() -> Iterator[Picture]:
    """Draw what the benchmarks have written."""
    records = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    yield Picture("fire.svg", fire(records["fire"]))
    yield Picture("step-time.svg", step_time(records["loop"]))
