"""A job as one HTML file: the page with its scripts and styles, and the job's view.

Called by `headgate report` on any thread. The file sends no request: its policy forbids them, and allows only scripts
with the digests that it lists.

Invariant: no text of a view, such as the name of an operator, can end the element that contains it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.observe.edges import edge_progress
from headgate.ui.page import MODULES, index_html, static_files

if TYPE_CHECKING:
    from headgate.observe.view import JobView

__all__ = ["render"]

_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)
_STYLE: Final = '<link rel="stylesheet" href="/static/app.css">\n'
_SCRIPT: Final = '<script type="module" src="/static/app.js"></script>\n'
_CHARSET: Final = '<meta charset="utf-8">\n'
_TITLE: Final = "<title>headgate</title>"


def render(view: JobView) -> str:
    """Return the page of a job as one file that needs no server.

    Args:
        view: With subtasks; with its history, samples and diagnosis if there are any.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> text = render(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress))
    >>> "<title>etl - headgate</title>" in text, "/static/" in text.replace('src: "/static/plotly.min.js"', "")
    (True, False)
    """
    if not view.edges:
        view = replace(view, edges=edge_progress(view.progress, view.graph))
    files = static_files()
    library = _script(files["plotly.min.js"].content)
    program = _script("".join(_inlined(files[name].content.decode()) for name in MODULES).encode())
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(program)}; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    name = html.escape(view.progress.name or view.progress.job)
    parts = {
        _CHARSET: f'{_CHARSET}<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        _TITLE: f"<title>{name} - headgate</title>",
        _STYLE: f"<style>\n{files['app.css'].content.decode()}</style>\n",
        _SCRIPT: "",
        "</body>": (
            f'<script type="application/json" id="headgate-view">{_data(view)}</script>\n'
            f"<script>{library}</script>\n"
            f'<script type="module">{program}</script>\n</body>'
        ),
    }
    text = index_html()
    for marker, content in parts.items():
        assert text.count(marker) == 1, f"the page has no {marker.strip()}"
        before, _, after = text.partition(marker)
        text = f"{before}{content}{after}"
    return text


def _inlined(module: str) -> str:
    """Return a module of the page without imports and exports: all modules share one scope, in order."""
    return _EXPORT.sub("", _IMPORT.sub("", module))


def _script(content: bytes) -> str:
    """Return a script for a <script> element; a browser normalizes line ends before it computes the digest."""
    text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
    assert "</script" not in text.lower(), "a script would end too early"
    assert "<!--" not in text, "a script would be read as a comment"
    return text


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _data(view: JobView) -> str:
    """Return the view as JSON in which no tag and no comment can begin."""
    return view.to_json().decode().replace("<", "\\u003c")
