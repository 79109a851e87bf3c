"""The page about the Python API names all of it, and what it promises is there."""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import Iterator

import pytest

from equipoise import Bundle, Cluster, Deadline, Ownership, Peer, Service, errors
from equipoise.brokers.operations import moves
from tests.docs.public_api import Call, calls, errors_of, public_names
from tests.house.house_rules import ROOT

NAMESPACE = "shop/carts"
EACH_CALL = pytest.mark.parametrize("call", list(calls()), ids=lambda call: call.name)
ELSEWHERE = "[*]"
"""A bundle that this broker has nothing to do with, as the page draws it."""


def page() -> str:
    """Return the page, to which the site adds signatures and docstrings."""
    return (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")


def test_the_page_has_every_public_name() -> None:
    shown = re.findall(r"^::: equipoise\.(?:pytest\.)?([A-Za-z_]+)$", page(), re.MULTILINE)
    assert sorted(shown) == sorted((*public_names(), "errors"))


@EACH_CALL
def test_a_call_has_a_docstring(call: Call) -> None:
    """The site leaves out a name without one."""
    assert call.called.__doc__


@EACH_CALL
def test_a_documented_error_can_be_imported(call: Call) -> None:
    """By programs, from `equipoise.errors` or without an import."""
    assert [] == [
        name
        for name in errors_of(call)
        if name not in errors.__all__ and not hasattr(builtins, name)
    ]


def test_errors_are_found_in_docstrings() -> None:
    """Those after the word, those of a list, and those of the call that a docstring refers to."""
    found = {call.name: errors_of(call) for call in calls()}
    assert ("OwnershipLost", "CallerError") == found["Ownership.begin"]
    assert ("CallerError", "OperatorError", "PeerError") == found["Equipoise.__aenter__"]
    assert found["Equipoise.route"] == found["WorkerInThread.route"] != ()


class Diary(Service):
    """A service that notes its calls by broker and bundle, and fails or waits as a test wants."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.may_prepare = asyncio.Event()
        self.may_prepare.set()
        self.calls: list[str] = []

    def note(self, call: str) -> None:
        """Note a call, and fail if a test wants it."""
        self.calls.append(call)
        if call in self.fails:
            self.calls.append(ELSEWHERE)
            raise errors.PeerError(f"no {call} today")

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        self.note("prepare")
        await self.may_prepare.wait()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.note("open")

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self.note("close")
        await self.may_close.wait()
        return None

    async def discard(self, bundle: Bundle) -> None:
        self.note("discard")

    @property
    def steps(self) -> Iterator[tuple[str, str]]:
        """Return each call with the one before it. A bundle that was closed or discarded, and is
        prepared again, was elsewhere.
        """
        before = ELSEWHERE
        for call in self.calls:
            if before in ("close", "discard") and call == "prepare":
                yield before, ELSEWHERE
                before = ELSEWHERE
            yield before, call
            before = call


def let(cluster: Cluster[Diary], gate: asyncio.Event) -> None:
    """Open a gate, and let happen what it has held up."""

    async def opened() -> None:
        gate.set()

    cluster.call(opened())


def fails(cluster: Cluster[Diary], bundle: str, call: str) -> None:
    """Have broker-2 fail at a call when it gets the bundle. Then broker-1 serves it again."""
    cluster.service("broker-2").fails.add(call)
    with pytest.raises(errors.PeerError, match="is not served by broker-2"):
        cluster.give(bundle, "broker-2")
    cluster.service("broker-2").fails.clear()
    cluster.give(bundle, "broker-1")


def test_the_life_of_a_bundle_is_as_drawn() -> None:
    """Each step of the diagram happens, and no other."""
    with Cluster(Diary, brokers=["broker-1", "broker-2"], patience_ms=20) as cluster:
        one, two = cluster.service("broker-1"), cluster.service("broker-2")
        (bundle,) = cluster.create(NAMESPACE, bundles=1)
        cluster.give(bundle, "broker-2")
        cluster.give(bundle, "broker-1")
        fails(cluster, bundle, "prepare")
        fails(cluster, bundle, "open")
        two.may_prepare.clear()
        with pytest.raises(errors.PeerError, match="is not served by broker-2"):
            cluster.give(bundle, "broker-2")
        # Users have no reason to cancel moves in their tests.
        cluster._operate(lambda port: moves.cancel(port, bundle))  # noqa: SLF001
        let(cluster, two.may_prepare)
        cluster.give(bundle, "broker-2")
        cluster.give(bundle, "broker-1")
        one.may_close.clear()
        with pytest.raises(errors.PeerError, match="is not served by broker-2"):
            cluster.give(bundle, "broker-2")
        cluster.kill("broker-2")
        cluster.advance(5_000)
        let(cluster, one.may_close)
        assert cluster.owner(bundle) == "broker-1"
        drawn = re.findall(r"^ +(\S+) --> ([^\s:]+)", page(), re.MULTILINE)
        assert set(drawn) == {*one.steps, *two.steps}
