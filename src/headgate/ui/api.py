"""The application behind the guard: an answer for each route of the page and of its JSON interface.

Runs on the server's event loop. Answers are the shapes of `observe` as JSON; errors are `{"error": text}`.

Invariants: only `Views` calls a job, in a thread; names in requests are keys of dicts and never paths.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response
from starlette.routing import Route, Router

from headgate.errors import HeadgateError
from headgate.ui.answers import CancelAnswer, ErrorAnswer, JobEntry, edge_answer
from headgate.ui.openapi import describe
from headgate.ui.page import StaticFile, index_html, static_files
from headgate.ui.routes import MAX_POINTS, MAX_SECONDS, OPERATIONS
from headgate.ui.views import Closing, UnknownJob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from headgate.observe.view import JobView
    from headgate.ui.routes import Operation
    from headgate.ui.views import Views, ViewSnapshot

__all__ = ["Api"]

_JSON: Final = "application/json"

_log = logging.getLogger(__name__)


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Api:
    """The application behind the guard."""

    def __init__(self, views: Views, *, allow_control: bool) -> None:
        self._views = views
        self._allow_control = allow_control
        self.app = Router(
            [
                Route(one.path, self._handler_of(one), methods=[one.method], name=f"{one.method} {one.path}")
                for one in OPERATIONS
            ],
            redirect_slashes=False,
            default=self._not_found,
        )

    async def _not_found(self, _scope: Any, receive: Any, send: Any) -> None:
        await _error(404, "there is no such page")(_scope, receive, send)

    def _handler_of(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a route, with errors as answers."""
        handler: Callable[[Request], Awaitable[Response]] = getattr(self, f"_{operation.handler}")

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except _Refused as refused:
                return _error(refused.status, str(refused))
            except UnknownJob as unknown:
                return _error(404, str(unknown))
            except Closing:
                return _error(503, "the server is being closed")
            except HeadgateError as error:
                return _error(503, str(error))
            except Exception:  # noqa: BLE001 - a bug in one answer does not close the page
                _log.exception("%s %s failed", operation.method, operation.path)
                return _error(500, "this request has failed: see the log of the driver")

        return answer

    # The page.

    async def _page(self, _request: Request) -> Response:
        return Response(index_html(), media_type="text/html")

    async def _static(self, request: Request) -> Response:
        found = self._files.get(request.path_params["file"])
        if found is None:
            raise _Refused(404, "there is no such file")
        headers = {"ETag": found.tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        content = found.file.content
        if len(content) > 100_000 and "gzip" in request.headers.get("accept-encoding", ""):
            content = await self._views.call(partial(getattr, found, "compressed"))
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=found.file.media_type)

    @cached_property
    def _files(self) -> Mapping[str, _ServedFile]:
        return {name: _ServedFile(one) for name, one in static_files().items()}

    # Requests that are repeated every second.

    async def _openapi(self, _request: Request) -> Response:
        return Response(self._description, media_type=_JSON)

    @cached_property
    def _description(self) -> bytes:
        return msgspec.json.encode(describe(OPERATIONS))

    async def _jobs(self, _request: Request) -> Response:
        return _json([self._entry(job, one.view) for job, one in (await self._all()).items()])

    async def _all(self) -> dict[str, ViewSnapshot]:
        """Return every job that answers: one of another process may be gone."""
        found = {}
        for job in self._views.ids():
            try:
                found[job] = await self._views.snapshot(job)
            except (HeadgateError, UnknownJob):
                continue
        return found

    def _entry(self, job: str, view: JobView) -> JobEntry:
        progress = view.progress
        return JobEntry(
            id=job,
            name=progress.name,
            status=progress.status,
            started_ms=view.at_ms - round(progress.uptime_s * 1000),
            allow_control=self._allow_control and not progress.status.over,
        )

    async def _view(self, request: Request) -> Response:
        snapshot = await self._snapshot(request)
        return Response(await self._views.call(partial(getattr, snapshot, "summary_json")), media_type=_JSON)

    async def _snapshot(self, request: Request) -> ViewSnapshot:
        return await self._views.snapshot(request.path_params["job"])

    # Details.

    async def _vertex(self, request: Request) -> Response:
        wanted = _whole_number("vertex", request.path_params["vertex"])
        view = (await self._snapshot(request)).view
        for vertex in view.progress.vertices:
            if vertex.id == wanted:
                return _json(vertex)
        raise _Refused(404, f"job {view.progress.job} has no vertex {wanted}")

    async def _edge(self, request: Request) -> Response:
        wanted = _whole_number("edge", request.path_params["edge"])
        view = (await self._snapshot(request)).view
        found = await self._views.call(partial(edge_answer, view, wanted))
        if found is None:
            raise _Refused(404, f"job {view.progress.job} has no edge {wanted}")
        return _json(found)

    async def _workers(self, request: Request) -> Response:
        return _json((await self._snapshot(request)).view.progress.workers)

    async def _timeline(self, request: Request) -> Response:
        query = request.query_params
        seconds = _number("seconds", query.get("seconds", "60"), MAX_SECONDS)
        points = _whole_number("points", query.get("points", "300"))
        if not 0 < points <= MAX_POINTS:
            raise _Refused(400, f"points is a number from 1 to {MAX_POINTS}")
        vertex = _whole_number("vertex", query["vertex"]) if "vertex" in query else None
        job = self._views.job(request.path_params["job"])
        if vertex is not None:
            view = (await self._snapshot(request)).view
            if all(one.id != vertex for one in view.graph.vertices):
                raise _Refused(404, f"job {view.progress.job} has no vertex {vertex}")
        call = partial(job.timeline, seconds=seconds, points=points, vertex=vertex)
        return _json(await self._views.call(call))

    async def _pressure(self, request: Request) -> Response:
        return _json_or_empty((await self._snapshot(request)).view.pressure)

    async def _why(self, request: Request) -> Response:
        return _json_or_empty((await self._snapshot(request)).view.diagnosis)

    async def _sample_pressure(self, request: Request) -> Response:
        return _json(await self._views.round(request.path_params["job"], "pressure"))

    async def _ask_why(self, request: Request) -> Response:
        return _json(await self._views.round(request.path_params["job"], "why"))

    async def _cancel(self, request: Request) -> Response:
        if not self._allow_control:
            raise _Refused(403, "this page cannot cancel jobs: start it with headgate run --allow-control")
        return _json(CancelAnswer(over=await self._views.cancel(request.path_params["job"])))

    async def _metrics(self, _request: Request) -> Response:
        from headgate.ui.prometheus import exposition  # noqa: PLC0415 - rarely needed

        views = {job: one.view for job, one in (await self._all()).items()}
        text, media_type = await self._views.call(partial(exposition, views))
        return Response(text, headers={"Content-Type": media_type})


class _ServedFile:
    """A static file with its tag, plain and compressed."""

    def __init__(self, file: StaticFile) -> None:
        self.file = file
        self.tag = f'"{hashlib.sha256(file.content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.file.content, 6)


def _number(name: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise _Refused(400, f"{name} is a number above 0, up to {most:g}")
    return value


def _whole_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _Refused(400, f"{name} is a whole number")
    return int(text)


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type=_JSON)


def _json_or_empty(answer: object | None) -> Response:
    return Response(status_code=204) if answer is None else _json(answer)


def _error(status: int, text: str) -> Response:
    response = _json(ErrorAnswer(error=text))
    response.status_code = status
    return response
