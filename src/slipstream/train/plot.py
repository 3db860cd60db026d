"""The course of a training as one SVG: loss by step on the left, acceptance by position on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 380, 240, 50, 40, 70
_COLOURS = ("#1b6ca8", "#c8553d", "#5b8c3a", "#8e5aa8", "#b58900", "#444444")

Point = tuple[float, float]


def training_plot(history: Sequence[dict[str, Any]], title: str) -> str:
    """Return the plot of a training's history.

    Args:
        history: records with "starts" and either "loss" and "accepted" by step (log) or "acceptance" by position
            and "mean_advanced" (evaluation).
        title: stands above.
    """
    log = [record for record in history if "loss" in record]
    evaluations = [record for record in history if "acceptance" in record]
    width, height = 2 * _WIDTH + _GAP + 2 * _LEFT, _HEIGHT + 2 * _TOP + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{_escaped(title)}</text>',
    ]
    losses = _series(log, "loss")
    parts += _panel(_LEFT, "loss (nats above the target's entropy)", losses, [], "step")
    solid, dots = _series(log, "accepted"), _series(evaluations, "acceptance")
    right = _LEFT + _WIDTH + _GAP
    parts += _panel(right, "acceptance: training (line), held out (dots)", solid, dots, "position")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _series(records: Sequence[dict[str, Any]], key: str) -> list[list[Point]]:
    """Return one list of (starts, value) a step."""
    count = max((len(record[key]) for record in records), default=0)
    return [[(r["starts"], r[key][k]) for r in records if k < len(r[key])] for k in range(count)]


def _panel(left: int, title: str, lines: list[list[Point]], dots: list[list[Point]], what: str) -> list[str]:
    points = [point for series in (*lines, *dots) for point in series]
    bottom = _TOP + 15 + _HEIGHT
    x_most = max((x for x, _ in points), default=1) or 1
    y_most = max((y for _, y in points), default=1) or 1

    def at(point: Point) -> tuple[float, float]:
        return left + point[0] / x_most * _WIDTH, bottom - point[1] / y_most * _HEIGHT

    parts = [f'<text x="{left}" y="{_TOP + 5}">{title}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * _HEIGHT
        parts.append(f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share * y_most:.2f}</text>')
    parts.append(
        f'<text x="{left + _WIDTH}" y="{bottom + 16}" text-anchor="end">{x_most:,} rows trained</text>'
    )
    for index, series in enumerate(lines):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, series))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_colour(index)}"/>')
    for index, series in enumerate(dots):
        for x, y in map(at, series):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_colour(index)}"/>')
    for index in range(max(len(lines), len(dots))):
        x = left + index * 75
        parts.append(f'<text x="{x}" y="{bottom + 16}" fill="{_colour(index)}">{what} {index + 1}</text>')
    return parts


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
