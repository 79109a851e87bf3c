"""A counter that can be told to waste its broker's processor: what is not the balancer's doing, and
must not stay unseen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from aiohttp import web

from equipoise.examples.counter import Counter

_BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


class Burning(Counter):
    """The counter; `POST /burn` starts a child that takes a whole processor."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Those of the counter, and its own."""
        return [*super().routes(), web.post("/burn", self.burn)]

    async def burn(self, _request: web.Request) -> web.Response:
        """Start a child."""
        # It is not waited for.
        child = subprocess.Popen([sys.executable, "-c", _BURN])  # noqa: ASYNC220
        return web.json_response({"pid": child.pid})
