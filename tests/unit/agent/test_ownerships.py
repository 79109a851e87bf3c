"""Ownerships: how a broker handles its service's answers, also late, repeated and invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from equipoise.brokers.agent.events import Closed, CutsFound, Event, OpenContinues, Opened, Prepared
from equipoise.brokers.testing.agent_host import Failed
from equipoise.channel.core.records import CUTS_MAX, TEXT_CHARACTERS_MAX
from tests.scenarios.language import perform, play
from tests.scenarios.stage import Link, Stage
from tests.scenarios.words import full_name, shortened

WHOLE = full_name("00_ff")
HALVES = (full_name("00_80"), full_name("80_ff"))


def say(stage: Stage, name: str, event: Event) -> list[str]:
    """Deliver an unasked answer of a service. Return what follows."""
    return finish(stage, partial(stage.process(name).deliver, event))


def finish(stage: Stage, work: Callable[[], None]) -> list[str]:
    """Finish a piece of work of a service. Return what follows."""
    work()
    stage.settle()
    stage.check()
    return stage.take_lines()


@pytest.mark.parametrize("bundle", [WHOLE, full_name("t/none/00_ff"), "nonsense"])
@pytest.mark.parametrize("host", ["a", "b"])
def test_an_unexpected_answer_changes_nothing(bundle: str, host: str) -> None:
    """It comes twice, too late, or for a bundle of another broker."""
    stage = play("cluster a b with 1 bundle")
    for event in (
        Prepared(bundle=bundle),
        Prepared(bundle=bundle, problem="no"),
        Opened(bundle=bundle),
        Opened(bundle=bundle, problem="no"),
        OpenContinues(bundle=bundle),
        Closed(bundle=bundle, handover=b"state"),
        CutsFound(bundle=bundle, asked_at=6, cuts=(1 << 31,)),
        CutsFound(bundle=bundle, asked_at=6, problem="no"),
    ):
        assert [] == say(stage, host, event)
    assert stage.process("a").agent.handles[WHOLE].is_open


def test_a_bundle_opens_once_the_data_directory_notes_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens that are read during a write share the next one. A bundle that the log takes away
    meanwhile is not opened.
    """
    stage = play("cluster a b with 8 bundles")
    process = stage.process("b")
    writes: list[Callable[[], None]] = []
    monkeypatch.setattr(process, "after_sync", writes.append)
    given = [
        shortened(bundle.name)
        for bundle in stage.view.bundles.values()
        if bundle.owner != process.agent.incarnation
    ]
    for bundle in given:
        lines = perform(stage, f"transfer {bundle} to b by admin")
        assert [] == [line for line in lines if line.startswith("b opens")]
    perform(stage, f"unload {given[2]} by admin")
    opened = []
    for _ in range(2):
        (write,) = writes
        writes.clear()
        opened.append(
            [line.split()[2] for line in finish(stage, write) if line.startswith("b opens")]
        )
    assert [given[:1], [given[1], *given[3:]]] == opened


def test_the_state_of_a_source_that_leaves_meanwhile_is_fetched_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for that, at its end."""
    stage = play("cluster a b with 1 bundle")
    writes: list[Callable[[], None]] = []
    monkeypatch.setattr(stage.process("b"), "after_sync", writes.append)
    perform(stage, "leave a")
    assert "left" == stage.view.brokers["a"].status
    assert any(
        line.startswith("b opens 00_ff") and line.endswith("from a")
        for line in finish(stage, writes.pop())
    )


def test_a_bundle_that_is_merged_meanwhile_opens_for_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The union opens after it has closed, with what it has left. Otherwise the handover would be
    lost.
    """
    stage = play("cluster a b with 2 bundles")
    process = stage.process("b")
    moved = next(
        name
        for name in ("00_80", "80_ff")
        if stage.view.bundles[full_name(name)].owner != process.agent.incarnation
    )
    writes: list[Callable[[], None]] = []
    monkeypatch.setattr(process, "after_sync", writes.append)
    perform(stage, f"transfer {moved} to b by admin")
    perform(stage, "merge 00_80 by admin")
    (write,) = writes
    lines = [*finish(stage, write), *perform(stage, "advance 1s")]
    steps = [
        " ".join(line.split()[:3]) for line in lines if line.startswith(("b opens", "b closes"))
    ]
    assert [f"b opens {moved}", f"b closes {moved}", "b opens 00_ff"] == [
        step for step in steps if step.split()[2] in (moved, "00_ff")
    ]


def test_an_opening_that_continues_has_its_deadline_again() -> None:
    """Only while it opens, and not once the log has taken the bundle away."""
    stage = play(
        "cluster a b with 1 bundle", "service b waits open", "transfer 00_ff to b by admin"
    )
    for _ in range(3):
        perform(stage, "advance 6s")
        assert [] == say(stage, "b", OpenContinues(bundle=WHOLE))
        assert WHOLE in stage.process("b").agent.handles
    perform(stage, "advance 11s")
    assert WHOLE not in stage.process("b").agent.handles


@pytest.mark.parametrize("end", ["service a answers", "advance 6s"])
def test_a_handle_settles_until_the_service_has_closed(end: str) -> None:
    """Or until it has overrun its deadline. A bundle that the broker has lost does not settle."""
    stage = play("cluster a b with 1 bundle", "service a waits close")
    handle, now = stage.process("a").agent.handles[WHOLE], stage.hosts["a"].now
    assert not handle.settles(now())
    perform(stage, "transfer 00_ff to b by admin")
    assert (True, False) == (handle.settles(now()), handle.passes(now()))
    perform(stage, end)
    assert not handle.is_settling


def test_a_union_waits_for_an_old_preparation_of_its_name() -> None:
    """It opens once that has ended and is discarded."""
    stage = play(
        "cluster a b with 1 bundle",
        "service b waits prepare",
        "transfer 00_ff to b by admin",
        "cancel 00_ff by admin",
    )
    _, old = stage.process("b").service.waiting.pop(0)
    for command in (
        "service b is well",
        "split 00_ff at 80 by admin",
        "transfer 00_80 to b by admin",
        "transfer 80_ff to b by admin",
    ):
        perform(stage, command)
    lines = perform(stage, "merge 00_80 by admin")
    assert ["b closes 00_80", "b closes 80_ff"] == [line for line in lines if line.startswith("b ")]
    assert ["b throws away what it prepared for 00_ff", "b opens 00_ff under token"] == [
        line.rsplit(" ", 1)[0] if "token" in line else line for line in finish(stage, old)
    ]


NONSENSE = {
    "none": (),
    "the lower end": (0,),
    "the upper end": (0xFFFFFFFF,),
    "below": (-1,),
    "above": (1 << 40,),
    "twice the same": (5, 5),
    "falling": (9, 5),
    "too many": tuple(range(1, CUTS_MAX + 2)),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_invalid_cuts_cancel_the_split(name: str) -> None:
    """The fold would refuse them."""
    stage = play("cluster a b with 1 bundle", "service a hangs cut", "split 00_ff by admin")
    line, _ = say(
        stage, "a", CutsFound(bundle=WHOLE, asked_at=stage.view.offset, cuts=NONSENSE[name])
    )
    assert line.endswith("cancel     00_ff  split  by a")
    assert "owned" == stage.view.bundles[WHOLE].phase


def test_the_maximum_of_cuts_is_made() -> None:
    stage = play("cluster a b with 1 bundle", "service a hangs cut", "split 00_ff by admin")
    say(
        stage,
        "a",
        CutsFound(bundle=WHOLE, asked_at=stage.view.offset, cuts=tuple(range(1, CUTS_MAX + 1))),
    )
    assert CUTS_MAX + 1 == len(stage.view.bundles) == len(stage.process("a").agent.handles)


def test_an_answer_to_an_older_split_cuts_nothing() -> None:
    """The first split was cancelled. The second has another position."""
    stage = play("cluster a b with 1 bundle", "service a waits cut", "split 00_ff at 40 by admin")
    _, older = stage.process("a").service.waiting.pop(0)
    for command in ("cancel 00_ff by admin", "split 00_ff at 80 by admin"):
        perform(stage, command)
    assert [] == finish(stage, older)
    perform(stage, "service a answers")
    assert list(HALVES) == sorted(stage.process("a").agent.handles)


@pytest.mark.parametrize(
    "problem", ["", "x" * 5_000, "caf\u00e9\n\u001b[31m", "file \udcff is gone"]
)
def test_any_text_of_a_refusal_fits_into_a_record(problem: str) -> None:
    """Lone surrogates and long texts, too."""
    stage = play("brokers a b", "service a waits prepare", "namespace t/n with 1 bundle by admin")
    stage.process("a").service.waiting.clear()
    lines = say(stage, "a", Prepared(bundle=WHOLE, problem=problem))
    if problem:
        assert any("refuse     00_ff  by a" in line for line in lines)
        assert ("owned", 3) == (stage.view.bundles[WHOLE].phase, stage.view.bundles[WHOLE].owner)
    assert all(len(line) <= TEXT_CHARACTERS_MAX + 200 for line in lines)


class FullStage(Stage):
    """A stage that notes the records that a log refuses during an outage."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[bytes] = []

    def send(self, link: Link, data: bytes, failed: Failed | None = None) -> None:
        if self.log_is_out:
            self.refused.append(data)
        super().send(link, data, failed)


def test_refused_proposals_are_retried_rarely_until_the_outage_ends() -> None:
    """Then all are proposed at once."""
    stage = FullStage()
    halves = ("00_80", "80_ff")
    for command in (
        "cluster a with 2 bundles",
        "service a waits close",
        *(f"unload {half} by admin" for half in halves),
        "outage",
    ):
        perform(stage, command)
    for _ in halves:
        perform(stage, "service a answers")
    stage.refused.clear()
    perform(stage, "advance 30s")
    releases = [data for data in stage.refused if b'"bundle"' in data]
    assert 2 * len(halves) <= len(releases) <= 5 * len(halves)
    perform(stage, "outage over")
    lines = perform(stage, "advance 250ms")
    assert len(halves) == sum("  release " in line for line in lines)


def test_a_transfer_goes_on_although_the_source_failed_to_open() -> None:
    stage = play("brokers a b", "service a waits open", "namespace t/n with 1 bundle by admin")
    perform(stage, "service b waits prepare")
    perform(stage, "transfer 00_ff to b by admin")
    stage.process("a").service.waiting.clear()
    assert [] == say(stage, "a", Opened(bundle=WHOLE, problem="broken"))
    assert "b opens 00_ff under token 9, from a" in perform(stage, "service b answers")
