"""Draws the table of benchmarks/README.md that compares the time of a step: `step-time.svg`."""

from __future__ import annotations

import re

from docs.pictures.support import ROOT, card, label, save

TABLE = "| a step, ms: median (range) |"
MACHINE = "2 CPU cores, no GPU, TensorFlow 2.21, Python 3.11"
LEFT, PANEL, GAP, BAR, TOP = 136, 134, 8, 22, 92
CELL = re.compile(r"\**([\d.]+)\**(?: \(([\d.]+) to ([\d.]+)\))?")


def table() -> tuple[list[str], dict[str, list[list[float]]]]:
    """Return the contenders, and for each task the median, least and most of each, in ms."""
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert MACHINE in text
    lines = text[text.index(TABLE) :].partition("\n\n")[0].splitlines()
    (_, *contenders), _, *rows = ([cell.strip() for cell in row[1:-1].split("|")] for row in lines)
    tasks = {}
    for name, *cells in rows:
        matches = [match for cell in cells if (match := CELL.fullmatch(cell))]
        tasks[name] = [
            [float(number or match[1]) for number in match.groups()] for match in matches
        ]
    return contenders, tasks


def chart() -> str:
    """Return the picture."""
    contenders, tasks = table()
    height = TOP + len(contenders) * BAR + 40
    body = [label(14, 28, "Time of a training step, in ms", font_size=15, font_weight=600)]
    for row, name in enumerate(contenders):
        body.append(label(LEFT - 12, TOP + row * BAR + 14, name, text_anchor="end"))
    for column, (task, figures) in enumerate(tasks.items()):
        x = LEFT + column * (PANEL + GAP)
        model, _, rest = task.partition(" (")[0].partition(", ")
        body += [label(x, 58, model, font_weight=600), label(x, 76, rest, "faint", font_size=12)]
        scale = (PANEL - 40) / max(median for median, _, _ in figures)  # a number needs room
        for row, (median, least, most) in enumerate(figures):
            y, wide, right = TOP + row * BAR, median * scale, x + min(most * scale, PANEL)
            color = "gray" if row else "blue"
            body += [
                f'<rect x="{x}" y="{y + 3}" width="{wide:.1f}" height="14" class="{color}"/>',
                f'<path d="M{x + least * scale:.1f},{y + 19}H{right:.1f}" class="stroke-faint"/>',
                label(x + wide + 5, y + 14, f"{median:.3g}", "faint", font_size=12),
            ]
    note = f"{MACHINE}. Bars: medians; lines: ranges, cut at the edge. Less is better."
    body.append(label(14, height - 14, note, "faint", font_size=12))
    width = LEFT + len(tasks) * (PANEL + GAP) + 14
    return card(width, height, "Time of a training step against other loops", body)


def main() -> None:
    """Write the picture."""
    save("step-time.svg", chart())
