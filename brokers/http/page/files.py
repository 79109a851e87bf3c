"""Serve the files of the page. They hold no data, so they need no credentials: the page asks for
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

from equipoise.channel.core.errors import NotFound

PAGE_PATHS: Final = frozenset({"/", "/page/{file}"})

_TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}

HEADERS: Final[Mapping[str, str]] = {
    # The page runs its own files alone, and talks to its own broker alone.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFiles:
    """The paths of the files."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return web.get("/", self.page), web.get("/page/{file:.+}", self.file)

    async def page(self, _request: web.Request) -> web.Response:
        """Return the page about the cluster, for a browser."""
        return _answer("index.html")

    async def file(self, request: web.Request) -> web.Response:
        """Return a file of the page."""
        return _answer(request.match_info["file"])


def _answer(name: str) -> web.Response:
    data = _contents().get(name)
    if data is None:
        raise NotFound(f"the page has no file {name[:64]!r}; open the page at /")
    content_type = _TYPES.get(name.rpartition(".")[2], "text/plain")
    return web.Response(body=data, content_type=content_type, charset="utf-8", headers=HEADERS)


@cache
def _contents() -> Mapping[str, bytes]:
    """Return the content of each file, by its path below `static`. All are small."""
    return dict(_below(files(__package__).joinpath("static"), ""))


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        else:
            yield f"{path}{each.name}", each.read_bytes()
