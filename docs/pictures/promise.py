"""Draws the promise: a worker is killed, and the run ends with the same bits; `promise.svg`.

Trains the digits in two processes, and once more while one of them gets a SIGKILL at step 50;
watches the losses as they are written, and compares every number of the last checkpoints.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from docs.pictures.support import TIMEOUT_SECS, TRAIN, Picture, card, label, line
from tests.support.processes import final_variables

STRAIGHT = ["strategy=multi_worker", "strategy.workers=2", "train.epochs=14"]
STRAIGHT += ["summary.every_steps=1", "writers=[jsonl]"]
KILLED = [*STRAIGHT, "fault=kill_worker_1_at_50"]

WIDTH, HEIGHT, TOP, BOTTOM = 860, 320, 70, 250
STEPS, CLOCK = (40, 400), (450, 830)
"""From where to where the two panels reach."""
STYLE = """.draw {stroke-dasharray: 1; animation: draw 3s linear backwards}
.late {animation-delay: 4s}
@keyframes draw {from {stroke-dashoffset: 1}}
@media (prefers-reduced-motion) {.draw {animation: none}}
"""

Point = tuple[float, int, float]
"""Seconds, step, loss."""


def watched(directory: Path, arguments: list[str]) -> tuple[Path, list[Point]]:
    """Train; return the run directory, and the losses as they were first written."""
    directory.mkdir()
    points: list[Point] = []
    seen: set[str] = set()
    process = subprocess.Popen([*TRAIN, *arguments], cwd=directory)
    deadline = time.monotonic() + TIMEOUT_SECS
    while process.poll() is None:
        assert time.monotonic() < deadline, arguments
        for file in directory.glob("runs/*/metrics.jsonl"):
            texts = {text for text in file.read_text().splitlines() if text.endswith("}")} - seen
            seen |= texts
            lines = [entry for entry in map(json.loads, texts) if entry["split"] == "train"]
            for entry in sorted(lines, key=lambda entry: entry["step"]):
                points.append((time.monotonic(), entry["step"], entry["loss"]))
        time.sleep(0.02)
    assert process.returncode == 0
    (run_dir,) = (directory / "runs").glob("*-*")
    return run_dir, [(at - points[0][0], *rest) for at, *rest in points]


def difference(one: Path, other: Path) -> tuple[float, int]:
    """Return the largest difference in the last checkpoints of two runs, and how many numbers."""
    first, second = final_variables(one), final_variables(other)
    assert first.keys() == second.keys()
    numbers = {name: value for name, value in first.items() if value.dtype.kind in "iuf"}
    assert all(first[name] == second[name] for name in first.keys() - numbers)
    largest = max(abs(value - second[name]).max() for name, value in numbers.items())
    return float(largest), sum(value.size for value in numbers.values())


def figure(straight: list[Point], killed: list[Point], largest: float, count: int) -> str:
    """Draw both runs, by the clock and by the step."""
    # It restarts where the most time passes between two steps.
    pauses = [later[0] - earlier[0] for earlier, later in pairwise(killed)]
    cut = 1 + pauses.index(max(pauses))
    before, after = killed[:cut], killed[cut:]
    secs, steps, highest = after[-1][0], straight[-1][1], straight[0][2]

    def clock(points: list[Point]) -> list[tuple[float, float]]:
        return [place(CLOCK, at / secs, loss) for at, _, loss in points]

    def step(points: list[Point]) -> list[tuple[float, float]]:
        return [place(STEPS, number / steps, loss) for _, number, loss in points]

    def place(panel: tuple[int, int], share: float, loss: float) -> tuple[float, float]:
        return panel[0] + share * (panel[1] - panel[0]), BOTTOM - (BOTTOM - TOP) * loss / highest

    dead, again = clock(before)[-1], clock(after)[0]
    pause = f"resumes {after[0][0] - before[-1][0]:.1f} s later"
    result = f"the last checkpoints have the same {count:,} numbers, bit for bit"
    if largest:
        result = f"the last checkpoints differ by {largest:.2g}"
    body = [
        label(40, 30, f"A process is killed: {result}", font_size=15, font_weight=600),
        label(40, 52, "training loss of two processes, by the step", "faint"),
        label(450, 52, "by the clock", "faint"),
        f'<rect x="{dead[0]:.1f}" y="{TOP}" width="{again[0] - dead[0]:.1f}" '
        f'height="{BOTTOM - TOP}" class="red" opacity="0.12"/>',
        label(dead[0] + 8, TOP + 18, "SIGKILL", "red"),
        label(dead[0] + 8, TOP + 36, pause, "faint", font_size=12),
        label(dead[0] + 8, TOP + 52, "(no standby yet)", "faint", font_size=12),
    ]
    for panel, end in ((CLOCK, f"{secs:.0f} s"), (STEPS, f"step {steps}")):
        body.append(line([(panel[0], BOTTOM), (panel[1], BOTTOM)], "line", 1))
        body.append(label(panel[1], BOTTOM + 18, end, "faint", font_size=12, text_anchor="end"))
    for curve, width in ((clock, 2), (step, 5)):
        body += [line(curve(straight), "gray", width)]
        body += [line(curve(before), "blue draw"), line(curve(after), "blue draw late")]
        body += [dot(curve(straight)[-1], "gray"), dot(curve(after)[-1], "blue")]
        body.append(dot(curve(before)[-1], "red"))
    for x, color, text in ((40, "gray", "uninterrupted"), (180, "blue", "a process is killed")):
        body += [line([(x, 296), (x + 22, 296)], color, 4), label(x + 28, 300, text)]
    body.append(label(830, 300, "dots: the kill, and the ends", "faint", text_anchor="end"))
    return card(WIDTH, HEIGHT, f"A process is killed: {result}", body, STYLE)


def dot(point: tuple[float, float], color: str) -> str:
    """Return a dot."""
    return f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="5" class="{color}"/>'


def pictures() -> Iterator[Picture]:
    """Train both and draw."""
    with tempfile.TemporaryDirectory() as scratch:
        straight, curve = watched(Path(scratch, "straight"), STRAIGHT)
        killed, broken = watched(Path(scratch, "killed"), KILLED)
        drawing = figure(curve, broken, *difference(straight, killed))
        yield Picture("promise.svg", drawing)
