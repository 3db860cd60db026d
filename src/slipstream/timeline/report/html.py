"""A page of an analysis: one HTML file that needs nothing else, to look at a round and where its time goes.

Names in a trace are anybody's text. They reach the page in two ways only: escaped in what stands in it as HTML,
and in the packed data, which the page's script shows as text, never as markup. What could still slip through would
not run: the page's policy allows the one script that it was written with, by its hash, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib import resources
from pathlib import Path

from slipstream.timeline.analysis import Analysis
from slipstream.timeline.report.choice import choose, rounds_numbered
from slipstream.timeline.report.headline import Headline, headline
from slipstream.timeline.report.model import page_model
from slipstream.timeline.report.pack import pack
from slipstream.timeline.report.scene import make_scene
from slipstream.trace.files import replace_file

#: Rows a page carries at most: about 8 bytes each in the file, and a few milliseconds a drawing.
MOST_ROWS = 400_000

_SCRIPTS = ("data", "scene", "draw", "overlay", "strip", "tables", "inspect", "page", "events", "main")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_html(analysis: Analysis, path: str | Path, *, round: int | None = None) -> None:
    """Write the page of an analysis; the file is replaced as a whole or not at all.

    Args:
        analysis: of any trace, one without a device included.
        path: of the file.
        round: begin with this round and carry only its operations; by default all of them, or of a long trace the
            rounds that tell most.

    Raises:
        UsageError: there is no such round.
        SlipstreamError: the file cannot be written.
    """
    replace_file(Path(path), page(analysis, round=round).encode("utf-8"), "page")


def page(analysis: Analysis, *, round: int | None = None, most_rows: int = MOST_ROWS) -> str:
    """Return the text of the page.

    Args:
        analysis: of any trace.
        round: as in `write_html`.
        most_rows: rows it carries at most.

    Raises:
        UsageError: there is no such round.
    """
    chosen = choose(analysis, number=round, most=most_rows)
    scene = make_scene(analysis, chosen)
    model, path_columns = page_model(analysis, chosen, scene)
    if round is not None:
        first = rounds_numbered(analysis, round)[0].round
        model["first"] = {"rank": first.rank, "round": round}
    head = headline(analysis)
    model |= {"first": model.get("first") or {"rank": head.rank, "round": head.round}}
    script = "".join(_file(f"{name}.js") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    style = _file("page.css")
    parts = {
        "policy": _policy(script, style),
        "title": html.escape(head.title),
        "style": style,
        "head": _head(head),
        "data": pack(model, {**scene.columns, **path_columns}),
        "script": script,
    }
    # In one pass: what is put in is not looked at again.
    return _PLACE.sub(lambda match: parts[match[1]], _file("page.html"))


def _file(name: str) -> str:
    return resources.files("slipstream.timeline.report").joinpath("page", name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _text(text: str) -> str:
    """Escape, and keep a number and its unit on one line."""
    return re.sub(r"(?<=\d) (?=(?:%|ns|us|ms|s)\b|%)", "&nbsp;", html.escape(text))


def _head(head: Headline) -> str:
    """Return the page's beginning, which can be read without the script."""
    tiles = "".join(
        f'<div class="tile"><dt>{_text(figure.label)}</dt><dd>{_text(figure.value)}</dd>'
        f"<p>{_text(figure.note)}</p></div>"
        for figure in head.figures
    )
    tiles = tiles and f'<dl class="tiles">{tiles}</dl>'
    support = "".join(f"<li>{_text(line)}</li>" for line in head.support)
    # The first sentence says how long, the others why.
    first, _, rest = head.verdict.partition(". ")
    more = f'<p class="lead">{_text(rest)}</p>' if rest else ""
    return (
        f'<p class="source"><b>{_text(head.title)}</b> {_text(head.about)}</p>'
        f"<h1>{_text(first if first.endswith('.') else f'{first}.')}</h1>{more}"
        f'<ul class="support">{support}</ul>{tiles}'
    )
