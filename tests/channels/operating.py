"""The port of operations on a channel that a test folds itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from equipoise.brokers.agent.requests import BY_COUNT, Intent, record_of, refusal
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.operations.checks import check_request
from equipoise.brokers.operations.port import Condition, Listener, T
from equipoise.brokers.runtime.router import OpenedBundles
from equipoise.channel.core.entries import BrokerEntry, Verdict
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from tests.channels.folding import Channel


class FoldingPort:
    """The port of one operation. `meanwhile` are the acts of others, one for each wait."""

    log_name = "memory:any"
    requester = "admin:ops"
    placement: Placement = BY_COUNT

    def __init__(self, channel: Channel, *meanwhile: Callable[[], object]) -> None:
        self.channel = channel
        self._meanwhile = list(meanwhile)
        self._listeners: list[Listener] = []

    @property
    def view(self) -> View:
        return self.channel.view

    @contextmanager
    def listen(self, listener: Listener) -> Iterator[None]:
        self._listeners.append(listener)
        yield
        self._listeners.remove(listener)

    def fold(self, record: AnyRecord) -> Folded:
        """Append a record, which must be accepted."""
        verdict = self.channel.put(record)
        assert verdict.accepted, (verdict, record)
        folded = Folded(offset=self.view.offset, record=record, verdict=verdict)
        for listener in self._listeners:
            listener(folded)
        return folded

    async def propose(self, intent: Intent) -> Folded:
        check_request(self.view, intent)
        make = record_of(self.view, intent)
        if isinstance(make, Verdict):
            raise refusal(intent, make)
        return self.fold(make(self.channel.admin()))

    async def until(self, condition: Condition[T], what: str, *, within_ms: int | None = None) -> T:
        del within_ms
        while (result := condition(self.view)) is None:
            assert self._meanwhile, f"nobody brings about {what}"
            self._meanwhile.pop(0)()
        return result

    async def drain(self, broker: BrokerEntry) -> None:
        raise NotImplementedError

    async def undrain(self, broker: BrokerEntry) -> None:
        raise NotImplementedError

    async def opened(self, tokens: Mapping[str, int], *, within_ms: int) -> OpenedBundles:
        raise NotImplementedError
