"""Draws useful time under fire from benchmarks/fire/results.json: `fire.svg`."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from benchmarks.fire.contenders import CONTENDERS
from docs.pictures.support import ROOT, card, label, save

RESULTS = ROOT / "benchmarks" / "fire" / "results.json"
WIDTH, LEFT, BAR, FULL = 860, 300, 22, 250
"""FULL is the length of a bar of 100 %."""


def bar(row: dict[str, Any], y: int) -> list[str]:
    """Return the bar of a row of results, with what became of the run."""
    every = f"{row['kill_every_secs']:g} s"
    body = [label(LEFT - 10, y + 14, every, "faint", text_anchor="end", font_size=12)]
    if row["useful_share"] is None:
        return [*body, label(LEFT + 5, y + 14, "does not end", "red")]
    wide = FULL * min(row["useful_share"], 1)
    color = "blue" if row["contender"] in ("steadfast", "command") else "gray"
    again, apart = row["computed_steps"] - row["steps"], row["largest_difference"]
    end = f"ends {apart:.1g} apart" if apart else "ends with the same bits"
    note = f"{again:,} steps again, {end}"
    return [
        *body,
        f'<rect x="{LEFT}" y="{y + 3}" width="{wide:.1f}" height="15" class="{color}"/>',
        label(LEFT + wide + 6, y + 14, f"{row['useful_share']:.0%}", font_weight=600),
        label(LEFT + wide + 44, y + 14, f"of {row['secs']:.0f} s", font_size=12),
        label(LEFT + wide + 96, y + 14, note, "faint", font_size=12),
    ]


def chart(rows: list[dict[str, Any]]) -> str:
    """Return the picture."""
    body = [
        label(14, 28, "Useful time while processes are killed", font_size=15, font_weight=600),
        label(14, 48, "a random process gets a SIGKILL every so many seconds", "faint"),
    ]
    y = 64
    fired = [row for row in rows if row["kill_every_secs"]]
    for processes, group in groupby(fired, lambda row: row["processes"]):
        title = "one process" if processes == 1 else f"{processes} processes"
        body.append(label(14, y + 16, title, font_weight=600))
        for name, parts in groupby(group, lambda row: row["contender"]):
            contender, y = CONTENDERS[name], y + 6
            body.append(label(LEFT - 60, y + 14, contender.title, text_anchor="end"))
            saves = f"saves {contender.setting}"
            body.append(label(LEFT - 60, y + 32, saves, "faint", text_anchor="end", font_size=12))
            for row in parts:
                body += bar(row, y)
                y += BAR
        y += 14
    return card(WIDTH, y + 6, "Useful time while processes are killed", body)


def main() -> None:
    """Write the picture, if there are results."""
    if not RESULTS.exists():
        print(f"no {RESULTS.relative_to(ROOT)}: run python -m benchmarks.fire --out {RESULTS}")
        return
    save("fire.svg", chart(json.loads(RESULTS.read_text())["rows"]))
