"""Lines and tables on a terminal. Where there is no terminal, nothing is wrapped or colored.

Imports rich, which takes 25 ms: a command imports this only when it has something to show.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar, TextIO

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.highlighter import RegexHighlighter
from rich.table import Column, Table

from trainer.text import printable, printable_lines

GAP = 2  # spaces between two columns

_ANY_WIDTH = 1_000_000
_LEAST_WIDTH = 10  # of a column that is wrapped, else all of them are


class _Highlighter(RegexHighlighter):
    """Colors the first word of a line, and the end of the line of the best evaluation."""

    base_style = ""
    highlights: ClassVar = [
        r"^(?P<red>error:)",
        r"^(?P<yellow>warning:)",
        r"^(?P<green>Done:)",
        r"(?P<green>  best)$",
    ]


class Terminal(Console):
    """An output stream, which may be no terminal.

    The cursor is never hidden, so that a command that is killed leaves a clean terminal.
    """

    def __init__(self, stream: TextIO | None = None, width: int | None = None) -> None:
        stream = stream or sys.stdout
        super().__init__(
            file=stream,
            width=width,
            highlighter=_Highlighter(),
            force_terminal=stream.isatty(),
            force_jupyter=False,
            markup=False,
            emoji=False,
        )

    def show_cursor(self, show: bool = True) -> bool:
        return False

    def show_line(self, text: str, *, is_whole: bool = False) -> None:
        """Show a line, wrapped between words unless `is_whole`; escape control characters in it."""
        self.print(printable_lines(text), soft_wrap=is_whole or not self.is_terminal)

    def show_table(
        self, rows: Sequence[Sequence[str]], align: str, fewest: int | None = None
    ) -> None:
        """Show rows in aligned columns; if they are too wide, one column is wrapped between words.

        Args:
            align: for each column `<` (text) or `>` (numbers).
            fewest: so many columns are always shown; of the others the last ones are left out where
                that avoids a wrapped line, or a wrapped word.
        """
        if not self.is_terminal:
            options = self.options.update(width=_ANY_WIDTH)
            for line in self.render_lines(_grid(rows, align), options, pad=False):
                self.show_line("".join(segment.text for segment in line).rstrip())
            return
        columns = [*zip(*rows, strict=True)]
        sizes = [max(map(cell_len, column)) for column in columns]
        spare = [
            size - max(cell_len(word) for cell in column for word in cell.split() or [""])
            for column, size in zip(columns, sizes, strict=True)
        ]
        counts = range(len(sizes), (fewest or len(sizes)) - 1, -1)
        excess = {count: sum(sizes[:count]) + GAP * (count - 1) - self.width for count in counts}
        whole = [count for count in counts if excess[count] <= 0]
        wrapped = [count for count in counts if excess[count] <= max(spare[:count])]
        count = [*whole, *wrapped, counts[-1]][0]
        grid = _grid([row[:count] for row in rows], align)
        widest = spare.index(max(spare[:count]))
        for number, column in enumerate(grid.columns):
            column.no_wrap = number != widest and sizes[widest] - excess[count] >= _LEAST_WIDTH
        self.print(grid)


def _grid(rows: Sequence[Sequence[str]], align: str) -> Table:
    sides: dict[str, JustifyMethod] = {"<": "left", ">": "right"}
    columns = [Column(justify=sides[side], overflow="fold") for side in align[: len(rows[0])]]
    grid = Table.grid(*columns, padding=(0, GAP, 0, 0))
    for row in rows:
        grid.add_row(*map(printable, row))
    return grid
