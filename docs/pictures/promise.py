"""Draws the promise: a worker is killed, and the run ends with the same bits.

Trains the digits in two processes, and once more while the second process gets a SIGKILL at step
50; watches the losses as they are written, and compares every number of the last checkpoints.
`docs/images/promise.svg`; about a minute.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from docs.pictures.support import IMAGES, TIMEOUT_SECS, TRAIN, card, label, path
from tests.support.processes import final_variables

STRAIGHT = ["strategy=multi_worker", "strategy.workers=2", "train.epochs=14"]
KILLED = [*STRAIGHT, "fault=kill_worker_1_at_50"]
EVERY_STEP = ["summary.every_steps=1", "writers=[jsonl]"]
POLL_SECS = 0.02

Point = tuple[float, int, float]
"""Seconds, step, loss."""

WIDTH, HEIGHT = 860, 320
TOP, BOTTOM = 70, 250
LEFT_PANEL, RIGHT_PANEL = (40, 500), (560, 830)
STYLE = """.draw {stroke-dasharray: 1; animation: draw 3s linear backwards}
.late {animation-delay: 4s}
@keyframes draw {from {stroke-dashoffset: 1}}
@media (prefers-reduced-motion) {.draw {animation: none}}
"""


def watched(directory: Path, arguments: list[str]) -> tuple[Path, list[list[Point]]]:
    """Train; return the run directory, and the losses of each attempt as they were written."""
    attempts: list[list[Point]] = [[]]
    seen: set[str] = set()
    process = subprocess.Popen([*TRAIN, *arguments, *EVERY_STEP], cwd=directory)
    deadline = time.monotonic() + TIMEOUT_SECS
    while process.poll() is None:
        assert time.monotonic() < deadline, arguments
        for file in directory.glob("runs/*/metrics.jsonl"):
            now = time.monotonic()
            texts = [text for text in file.read_text().splitlines() if text.endswith("}")]
            lines = [json.loads(text) for text in texts if text not in seen]
            seen.update(texts)
            for line in lines:
                if line["split"] == "train":
                    if attempts[-1] and line["step"] <= attempts[-1][-1][1]:  # trained once more
                        attempts.append([])
                    attempts[-1].append((now, line["step"], line["loss"]))
        time.sleep(POLL_SECS)
    assert process.returncode == 0
    (run_dir,) = (directory / "runs").glob("*-*")
    begin = attempts[0][0][0]
    return run_dir, [[(at - begin, *rest) for at, *rest in part] for part in attempts]


def difference(one: Path, other: Path) -> tuple[float, int]:
    """Return the largest difference in the last checkpoints of two runs, and how many numbers."""
    first, second = final_variables(one), final_variables(other)
    assert first.keys() == second.keys()
    numbers = {name: value for name, value in first.items() if value.dtype.kind in "iuf"}
    assert all(first[name] == second[name] for name in first.keys() - numbers)
    largest = max(abs(value - second[name]).max() for name, value in numbers.items())
    return float(largest), sum(value.size for value in numbers.values())


def figure(straight: list[Point], killed: list[list[Point]], largest: float, count: int) -> str:
    """Draw both runs, by the clock and by the step."""
    before, after = killed
    secs = after[-1][0]
    steps = straight[-1][1]
    highest = max(loss for *_, loss in straight)

    def clock(points: list[Point]) -> list[tuple[float, float]]:
        return [(across(LEFT_PANEL, at / secs), down(loss)) for at, _, loss in points]

    def step(points: list[Point]) -> list[tuple[float, float]]:
        return [(across(RIGHT_PANEL, number / steps), down(loss)) for _, number, loss in points]

    def across(panel: tuple[int, int], share: float) -> float:
        return panel[0] + share * (panel[1] - panel[0])

    def down(loss: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * loss / highest

    dead, again = clock(before)[-1], clock(after)[0]
    kill = step(before)[-1]
    gap = after[0][0] - before[-1][0]
    body = [
        label(40, 30, "Two processes train the digits", font_size=15, font_weight=600),
        label(40, 50, "by the clock: training loss of each step", "faint"),
        label(560, 50, "by the step", "faint"),
        f'<rect x="{dead[0]:.1f}" y="{TOP}" width="{again[0] - dead[0]:.1f}" '
        f'height="{BOTTOM - TOP}" class="red" opacity="0.12"/>',
        label((dead[0] + again[0]) / 2, TOP + 18, "SIGKILL", "red", text_anchor="middle"),
        label(
            (dead[0] + again[0]) / 2,
            TOP + 36,
            f"trains again {gap:.1f} s later",
            "faint",
            text_anchor="middle",
            font_size=12,
        ),
    ]
    for panel, end in ((LEFT_PANEL, f"{secs:.0f} s"), (RIGHT_PANEL, f"step {steps}")):
        body.append(path([(panel[0], BOTTOM), (panel[1], BOTTOM)], "line", 1))
        body.append(label(panel[0], BOTTOM + 18, "0", "faint", font_size=12))
        body.append(label(panel[1], BOTTOM + 18, end, "faint", font_size=12, text_anchor="end"))
    body += [path(clock(straight), "gray", 2), path(step(straight), "gray", 5)]
    for place, width in ((clock, 2), (step, 1.5)):
        body += [path(place(before), "blue draw", width), path(place(after), "blue draw late", width)]
    body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="red"/>' for x, y in (dead, kill)]
    legend = (("gray", "undisturbed"), ("blue", "a worker killed at step 50"))
    for x, (color, text) in zip((40, 160), legend, strict=True):
        body.append(path([(x, 296), (x + 22, 296)], color, 4))
        body.append(label(x + 28, 300, text))
    result = f"largest difference of all {count:,} numbers at the end: {largest:g}"
    body.append(label(830, 300, result, font_weight=600, text_anchor="end"))
    return card(WIDTH, HEIGHT, f"A worker is killed, the loss goes on; {result}", body, STYLE)


def main() -> None:
    """Train both and draw."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch, name) for name in ("straight", "killed")]
        for folder in folders:
            folder.mkdir()
        straight, (curve,) = watched(folders[0], STRAIGHT)
        killed, attempts = watched(folders[1], KILLED)
        picture = figure(curve, attempts, *difference(straight, killed))
    (IMAGES / "promise.svg").write_text(picture)


if __name__ == "__main__":
    main()
