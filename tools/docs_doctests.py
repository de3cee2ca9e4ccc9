"""Shows the doctests of docstrings as code in the documentation.

Loaded by mkdocs.yml. Without it Markdown takes `>>>` for a quotation and `[...]` in an answer for a link.
"""  # noqa: INP001 - a script, not a package

import griffe


class Doctests(griffe.Extension):
    """Puts a fence around each run of lines that begins with a prompt and ends with an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Griffe has made an object; its docstring is not parsed yet."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """The same text with its doctests fenced."""
    lines, inside = [], False
    for line in docstring.splitlines():
        if not inside and line.lstrip().startswith(">>> "):
            if lines and lines[-1].strip():
                lines.append("")
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
