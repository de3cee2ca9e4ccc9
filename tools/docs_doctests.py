"""Shows the doctests of docstrings as code in the documentation.

Loaded by mkdocs.yml. Without it Markdown takes `>>>` for a quotation and `[...]` in an answer for a link.
"""  # noqa: INP001 - a script, not a package

import griffe


class Doctests(griffe.Extension):
    """Fences each group of lines that begins with a prompt and ends with an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence the doctests of an object's docstring, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return the text with its doctests fenced."""
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
