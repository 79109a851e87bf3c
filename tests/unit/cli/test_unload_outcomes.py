"""`equipoise namespaces unload`: what it says of a bundle that a destination could not open, or that came back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.operations import on_channel
from equipoise.brokers.operations.access import Access
from equipoise.channel.core import propose
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import Listener, read_on, read_view
from equipoise.channel.system.deadline import Deadline
from tests.channels.folding import NAMESPACE
from tests.unit.cli.fabricated import LEFT, LEFT_RANGE, Actors, author_of, owned_channel, run, write


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The URL of the log of `owned_channel`: 9 records, a owns `LEFT`, b owns `RIGHT`, c nothing."""
    return write(owned_channel().entries, tmp_path)


def unload(log: str, *arguments: str) -> tuple[str, str, int]:
    """What `namespaces unload` prints, and its exit code."""
    result = run("namespaces", "unload", NAMESPACE, *arguments, log=log)
    return result.stdout, result.stderr, result.exit_code


def giving_up(view: View) -> AnyRecord | None:
    """What c says while it owns the left bundle: it cannot open it; and then a assigns it to itself."""
    bundle = view.bundles[LEFT]
    a, c = view.brokers["a"], view.brokers["c"]
    if bundle.phase == "owned" and bundle.owner == c.incarnation:
        return propose.give_up(author_of(c), bundle, problem="no disk")
    return propose.assign(author_of(a), bundle, owner=a.incarnation) if bundle.phase == "free" else None


@pytest.mark.parametrize("destination", [(), ("-d", "c")])
def test_an_unload_whose_destination_gives_the_bundle_up_is_refused(destination: tuple[str, ...], log: str) -> None:
    with Actors(log, also=giving_up):
        out, error, code = unload(log, "--bundle", LEFT_RANGE, *destination)
    told = f"error: the transfer of {LEFT} was cancelled: {LEFT} came back to a, token 16: c could not open it: no disk; see equipoise"
    assert ("", 1) == (out, code)
    assert error.startswith(told)


def test_an_unload_of_all_names_the_bundles_that_came_back(log: str) -> None:
    with Actors(log, also=giving_up):
        out, _, code = unload(log)
    moved, came_back = out.splitlines()
    assert ("1 bundle of tenant/ns moved to another owner; 0 had no owner, or were on the move already", 1) == (moved, code)
    assert came_back.startswith(f"{LEFT} came back to a, token ")


def test_a_refusal_is_noted_while_other_bundles_are_requested(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    propose_once = on_channel.submit

    def submit(channel: Access, make_record: Callable[[View, propose.Author], AnyRecord], *, intent: Intent, listener: Listener) -> Folded:
        accepted = propose_once(channel, make_record, intent=intent, listener=listener)
        deadline = Deadline.after(timeout_ms=10_000)
        reader = read_view(channel.log, deadline=deadline)
        while (left := reader.view.bundles[LEFT]).phase != "owned" or left.owner != reader.view.brokers["a"].incarnation:
            channel.log.wait(reader.position, timeout_ms=deadline.remaining_ms())
            read_on(channel.log, reader, deadline=deadline)
        return accepted

    monkeypatch.setattr(on_channel, "submit", submit)
    with Actors(log, also=giving_up):
        out, _, code = unload(log)
    assert out.endswith("c could not open it: no disk\n"), out
    assert code == 1


def test_an_unload_without_anybody_else_waits_for_the_next_owner(tmp_path: Path) -> None:
    channel = owned_channel()
    for other in "bc":
        channel.die(other)
    url = write(channel.entries, tmp_path)
    with Actors(url, also=giving_up):
        out, _, code = unload(url, "--bundle", LEFT_RANGE, "--json")
    document = json.loads(out)
    nobody = "no other broker may own it: no other broker accepts bundles"
    assert (12, "a", "a", nobody, 0) == (document["offset"], document["source"], document["owner"], document["problem"], code)
