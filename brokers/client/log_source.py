"""Follow the log directly, for programs that can open it."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.brokers.balancing.named import server_of
from equipoise.brokers.client.table import Assigned
from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.runtime.service_runner import peer_of
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.reader import Folded
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import STOP_MS_MAX, TableView
from equipoise.channel.system.deadline import Deadline


class LogSource:
    """Follows the channel of one log. See `Source`."""

    def __init__(self, log_url: str, *, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a lookup may return another answer than before."""
        self._changed = changed
        self._table = TableView(lambda: open_log(log_url, create=False), name=log_url)

    async def start(self, *, timeout_ms: int) -> None:
        """See `Source.start`. Reads the log to its end."""
        self._table.listen(self._folded, resynced=self._resynced)
        self._table.start()
        try:
            await self._table.ready(Deadline.after(timeout_ms=timeout_ms))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """See `Source.stop`."""
        await self._table.stop(Deadline.after(timeout_ms=STOP_MS_MAX))

    def find(self, namespace: str, point: int) -> Assigned | None:
        """See `Source.find`. Also raises what ended the subscription to the log."""
        if self._table.failure is not None:
            raise self._table.failure
        view = self._table.view
        bundle = view.bundle_at(namespace, point)
        if bundle is None:
            raise UnknownNamespace(namespace=namespace)
        server = server_of(view, bundle)
        peer = None if server is None else peer_of(server)
        return Assigned(
            bundle=bundle.name, low=bundle.low, high=bundle.high, token=bundle.token, peer=peer
        )

    def refresh(self, namespace: str) -> None:
        """See `Source.refresh`. Does nothing: the log is always current."""

    def _folded(self, folded: Folded) -> None:
        if folded.verdict.changes:
            self._changed()

    def _resynced(self, _resync: Resync) -> None:
        self._changed()
