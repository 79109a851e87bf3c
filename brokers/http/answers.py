"""How HTTP answers are spelled: JSON by orjson, plain text, nothing at all.

May live here: the making of responses. What they say is decided by the handlers.
"""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web

JSON: Final = "application/json"

SERVER: Final = "equipoise"
"""What answers say of who made them; aiohttp would give the versions of itself and of Python to everybody."""


def json_answer(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`value` as JSON; `None` is `null`. It must be something that JSON can express."""
    return web.Response(body=orjson.dumps(value), status=status, headers=headers, content_type=JSON)


def text_answer(text: str) -> web.Response:
    """One line of plain text, as Pulsar answers where a JSON document would be too much."""
    return web.Response(text=text, content_type="text/plain")


def done() -> web.Response:
    """204: what was asked for has been done, and there is nothing to tell."""
    return web.Response(status=204)
