"""The description of the JSON interface as OpenAPI 3.1, from the routes and the classes of their answers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.ui.answers import ErrorAnswer
from headgate.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.ui.routes import Operation

__all__ = ["describe"]

_ERRORS: Final = {
    "400": "A parameter is not valid.",
    "403": "The token, the cookie, `Host` or `Origin` is not correct, or control is not allowed.",
    "404": "There is no such job, vertex, edge or file.",
    "503": "The job does not answer any more, or the server is being closed.",
}


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the whole document.

    >>> from headgate.ui.routes import OPERATIONS
    >>> document = describe(OPERATIONS)
    >>> document["openapi"], document["paths"]["/api/jobs/{job}"]["get"]["responses"]["200"]["content"]
    ('3.1.0', {'application/json': {'schema': {'$ref': '#/components/schemas/JobView'}}})
    """
    known = list(operations)
    answers = [one.answer for one in known if one.answer is not None]
    schemas, components = msgspec.json.schema_components(
        [*answers, ErrorAnswer], ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(str, answers), schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for one in known:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(
            one, schema_of.get(str(one.answer)), schemas[-1]
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headgate",
            "version": __version__,
            "description": "Jobs, as their page shows them. Times are in milliseconds since 1970, shares from 0 to 1.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"cookie": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _prose_only(schema) for name, schema in components.items()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "The token of the printed address."},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "headgate_PORT",
                    "description": "A browser receives it for the token. A POST with it needs `Origin`.",
                },
            },
        },
    }


def _operation(one: Operation, schema: dict[str, Any] | None, error: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {one.media_type: {"schema": schema or {"type": "string"}}}
    responses: dict[str, Any] = {"200": {"description": one.text, "content": content}}
    if one.empty:
        responses["204"] = {"description": "There is no result yet."}
    if one.path == "/":
        responses["303"] = {"description": "The token is correct: a cookie, and a redirect to the page."}
    for status, text in _ERRORS.items():
        responses[status] = {"description": text, "content": {"application/json": {"schema": error}}}
    described: dict[str, Any] = {
        "summary": one.text,
        "operationId": one.handler,
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.within,
                "required": parameter.within == "path",
                "description": parameter.text or f"the {parameter.name}",
                "schema": {"type": parameter.kind},
            }
            for parameter in one.parameters
        ],
        "responses": responses,
    }
    if one.control:
        described["x-needs"] = "--allow-control"
    return described


def _prose_only(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the examples of its docstring."""
    text = schema.get("description")
    return schema if text is None else {**schema, "description": text.partition(">>>")[0].strip()}
