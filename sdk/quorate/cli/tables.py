"""Prints tables: columns as wide as their cells, folded at a terminal's edge, never in a pipe."""

import os
import shutil
import sys
import textwrap
import unicodedata

import typer

from quorate.cli.terminal_text import one_line

GAP = "  "
CELL_MIN = 12  # a folded column keeps at least this width
BOLD, PLAIN = "\033[1m", "\033[0m"


def table(columns: list[str], rows: list[list[str]]) -> None:
    is_terminal = sys.stdout.isatty()
    shown = [[one_line(cell) for cell in row] for row in rows]
    edge = shutil.get_terminal_size().columns if is_terminal else None
    lines = table_lines(columns, shown, edge)
    if is_terminal and not os.environ.get("NO_COLOR"):
        lines[0] = f"{BOLD}{lines[0]}{PLAIN}"
    for line in lines:
        typer.echo(line)


def table_lines(columns: list[str], rows: list[list[str]], edge: int | None) -> list[str]:
    """Returns the lines of a table at most `edge` wide where folding allows; None never folds."""
    wide = [max(_width(cell) for cell in cells) for cells in zip(columns, *rows, strict=True)]
    while edge is not None and sum(wide) + len(GAP) * (len(wide) - 1) > edge:
        widest = max(wide)
        if widest <= CELL_MIN:
            break
        wide[wide.index(widest)] -= 1
    lines = []
    for row in (columns, *rows):
        cells = [_folded(cell, width) for cell, width in zip(row, wide, strict=True)]
        for at in range(max(len(cell) for cell in cells)):
            parts = [cell[at] if at < len(cell) else "" for cell in cells]
            padded = [part + " " * (width - _width(part)) for part, width in zip(parts, wide)]
            lines.append(GAP.join(padded).rstrip())
    return lines


def _folded(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width) or [""] if _width(cell) > width else [cell]


def _width(text: str) -> int:
    """Returns the columns that a text takes on a terminal; wide characters take two."""
    if text.isascii():
        return len(text)
    wide = sum(1 for letter in text if unicodedata.east_asian_width(letter) in "WF")
    marks = sum(1 for letter in text if unicodedata.combining(letter))
    return len(text) + wide - marks
