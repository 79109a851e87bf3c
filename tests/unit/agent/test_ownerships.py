"""Ownerships: what a broker makes of its service's answers, be they late, double, out of place or nonsense."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from equipoise.brokers.agent.events import Closed, CutsFound, Event, Opened, Prepared
from equipoise.brokers.agent.intents import Cancel
from equipoise.brokers.testing.agent_host import Failed
from equipoise.channel.core.records import CUTS_MAX, TEXT_CHARACTERS_MAX
from tests.scenarios.language import perform, play
from tests.scenarios.stage import Link, Stage
from tests.scenarios.words import full_name

WHOLE = full_name("00_ff")
HALVES = (full_name("00_80"), full_name("80_ff"))


def say(stage: Stage, name: str, event: Event) -> list[str]:
    """Let a broker's service say something unasked, and what comes of it."""
    return finish(stage, partial(stage.process(name).deliver, event))


def finish(stage: Stage, work: Callable[[], None]) -> list[str]:
    """Let a service do a piece of work, and what comes of it."""
    work()
    stage.settle()
    stage.check()
    return stage.take_lines()


@pytest.mark.parametrize("bundle", [WHOLE, full_name("t/none/00_ff"), "nonsense"])
@pytest.mark.parametrize("host", ["a", "b"])
def test_an_answer_that_nobody_waits_for_changes_nothing(bundle: str, host: str) -> None:
    """What a service says twice, too late, or of a bundle that it has nothing to do with is passed over."""
    stage = play("cluster a b with 1 bundle")
    for event in (
        Prepared(bundle=bundle),
        Prepared(bundle=bundle, problem="no"),
        Opened(bundle=bundle),
        Opened(bundle=bundle, problem="no"),
        Closed(bundle=bundle, handover=b"state"),
        CutsFound(bundle=bundle, asked_at=6, cuts=(1 << 31,)),
        CutsFound(bundle=bundle, asked_at=6, problem="no"),
    ):
        assert [] == say(stage, host, event)
    assert stage.process("a").agent.handles[WHOLE].is_open


def test_nothing_is_served_before_it_is_open() -> None:
    """A handle passes from the service's word that the bundle is open, not from the record that makes it the broker's own."""
    stage = play("brokers a", "service a waits open", "namespace t/n with 1 bundle by admin")
    handle = stage.process("a").agent.handles[WHOLE]
    assert ("owned", False) == (stage.view.bundles[WHOLE].phase, handle.passes(stage.hosts["a"].now()))
    perform(stage, "service a answers")
    assert handle.passes(stage.hosts["a"].now())


def test_the_handle_is_closed_before_the_service_hears_of_it() -> None:
    """When the service is asked to close, nothing passes any more: what it settles is what was begun before."""
    stage = play("cluster a b with 1 bundle", "service a waits close")
    handle = stage.process("a").agent.handles[WHOLE]
    perform(stage, "transfer 00_ff to b by admin")
    assert not handle.is_open


def test_what_is_opened_too_late_is_closed_again() -> None:
    """A service that opens a bundle after the log has given it to another closes it, and its handle never passes."""
    stage = play("cluster a b with 1 bundle", "service b waits open", "transfer 00_ff to b by admin")
    late = stage.process("b").agent.handles[WHOLE]
    perform(stage, "pause b")
    perform(stage, "advance 3500ms")
    perform(stage, "resume b")
    assert ["b closes 00_ff and sends its clients to a"] == perform(stage, "service b answers")
    assert not late.is_open


def test_one_bundle_is_with_the_service_once() -> None:
    """A bundle that comes back while its former ownership is still closing is prepared when that has ended."""
    stage = play("cluster a b with 1 bundle", "service a waits close", "unload 00_ff by admin", "declare dead a", "leave b")
    assert [] == [line for line in perform(stage, "advance 3s") if line.startswith("a ")]
    assert ["a prepares 00_ff", "a opens 00_ff under token"] == [
        line.rsplit(" ", 1)[0] if "token" in line else line for line in perform(stage, "service a answers") if line.startswith("a ")
    ]


def test_what_was_prepared_and_is_not_needed_is_thrown_away() -> None:
    """The service hears of it, whenever the log has changed its mind."""
    stage = play("cluster a b with 1 bundle", "hold b", "transfer 00_ff to b by admin")
    assert "b throws away what it prepared for 00_ff" in perform(stage, "cancel 00_ff by admin")


@pytest.mark.parametrize("by", ["a", "b"])
def test_a_cancel_that_an_operator_asks_a_broker_for_is_no_refusal(by: str) -> None:
    """Whichever broker writes the cancel, the destination itself included, it takes the bundle when its owner dies."""
    stage = play("cluster a b with 1 bundle", "service b waits prepare")
    for _ in range(8):
        perform(stage, "transfer 00_ff to b by admin")
        stage.ask(by, Cancel(bundle=WHOLE, reason="operator"))
        perform(stage, "service b answers")
    for command in ("service b is well", "crash a", "declare dead a", "advance 300ms"):
        perform(stage, command)
    assert ("owned", 3) == (stage.view.bundles[WHOLE].phase, stage.view.bundles[WHOLE].owner)


def test_a_refusal_of_the_destination_is_one() -> None:
    stage = play("cluster a b with 1 bundle", "service b refuses prepare")
    for _ in range(3):
        perform(stage, "transfer 00_ff to b by admin")
    for command in ("service b is well", "crash a", "declare dead a", "advance 1s"):
        perform(stage, command)
    assert "free" == stage.view.bundles[WHOLE].phase
    perform(stage, "advance 3s")
    assert "owned" == stage.view.bundles[WHOLE].phase


def test_a_union_whose_name_the_service_is_still_busy_with_is_opened_after_that() -> None:
    """A merge brings back a name of which an old preparation is under way: the union opens when that has ended and is discarded."""
    stage = play("cluster a b with 1 bundle", "service b waits prepare", "transfer 00_ff to b by admin", "cancel 00_ff by admin")
    _, old = stage.process("b").service.waiting.pop(0)
    for command in ("service b is well", "split 00_ff at 80 by admin", "transfer 00_80 to b by admin", "transfer 80_ff to b by admin"):
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
def test_cuts_that_are_none_call_the_split_off(name: str) -> None:
    """The owner does not write what the fold would refuse: it calls the split off, and says why."""
    stage = play("cluster a b with 1 bundle", "service a hangs cut", "split 00_ff by admin")
    line, _ = say(stage, "a", CutsFound(bundle=WHOLE, asked_at=stage.view.offset, cuts=NONSENSE[name]))
    assert line.endswith("cancel     00_ff  split  by a")
    assert "owned" == stage.view.bundles[WHOLE].phase


def test_as_many_cuts_as_fit_are_made() -> None:
    stage = play("cluster a b with 1 bundle", "service a hangs cut", "split 00_ff by admin")
    say(stage, "a", CutsFound(bundle=WHOLE, asked_at=stage.view.offset, cuts=tuple(range(1, CUTS_MAX + 1))))
    assert CUTS_MAX + 1 == len(stage.view.bundles) == len(stage.process("a").agent.handles)


def test_an_answer_to_an_older_question_cuts_nothing() -> None:
    """A split is cancelled and asked for anew, elsewhere: where the first was to cut is no answer to the second."""
    stage = play("cluster a b with 1 bundle", "service a waits cut", "split 00_ff at 40 by admin")
    _, older = stage.process("a").service.waiting.pop(0)
    for command in ("cancel 00_ff by admin", "split 00_ff at 80 by admin"):
        perform(stage, command)
    assert [] == finish(stage, older)
    perform(stage, "service a answers")
    assert list(HALVES) == sorted(stage.process("a").agent.handles)


@pytest.mark.parametrize("problem", ["", "x" * 5_000, "caf\u00e9\n\u001b[31m", "file \udcff is gone"])
def test_whatever_a_service_says_is_put_on_record(problem: str) -> None:
    """A refusal in any words, even those that no encoding knows, neither stops the broker nor is too long for a record."""
    stage = play("brokers a b", "service a waits prepare", "namespace t/n with 1 bundle by admin")
    stage.process("a").service.waiting.clear()
    lines = say(stage, "a", Prepared(bundle=WHOLE, problem=problem))
    if problem:
        assert any("refuse     00_ff  by a" in line for line in lines)
        assert ("owned", 3) == (stage.view.bundles[WHOLE].phase, stage.view.bundles[WHOLE].owner)
    assert all(len(line) <= TEXT_CHARACTERS_MAX + 200 for line in lines)


class FullStage(Stage):
    """A stage that counts the records that a log does not take while it is out."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[bytes] = []

    def send(self, link: Link, data: bytes, failed: Failed | None = None) -> None:
        if self.log_is_out:
            self.refused.append(data)
        super().send(link, data, failed)


def test_what_a_full_disk_refuses_is_said_again_seldom_and_at_once_when_it_has_room() -> None:
    """Renewals try the log; what waits for it is proposed a few times in half a minute, and all together with the end of the outage."""
    stage = FullStage()
    halves = ("00_80", "80_ff")
    for command in ("cluster a with 2 bundles", "service a waits close", *(f"unload {half} by admin" for half in halves), "outage"):
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


def test_a_split_of_what_is_not_open_waits() -> None:
    """A broker that is asked to split what its service has not yet opened looks for cuts when it is open."""
    stage = play("brokers a", "service a waits open", "namespace t/n with 1 bundle by admin")
    assert ["6  splitting  00_ff  on a  by admin:ops"] == [line for line in perform(stage, "split 00_ff at 80 by admin") if line[0] != " "]
    assert "a goes on with 00_80 under token 5 and 80_ff under token 5" in perform(stage, "service a answers")
    assert list(HALVES) == sorted(stage.process("a").agent.handles)


def test_a_transfer_of_what_could_not_be_opened_goes_on() -> None:
    """An owner whose service failed to open a bundle hands it over all the same where somebody else is to have it."""
    stage = play("brokers a b", "service a waits open", "namespace t/n with 1 bundle by admin")
    perform(stage, "service b waits prepare")
    perform(stage, "transfer 00_ff to b by admin")
    stage.process("a").service.waiting.clear()
    assert [] == say(stage, "a", Opened(bundle=WHOLE, problem="broken"))
    assert "b opens 00_ff under token 9, from a" in perform(stage, "service b answers")
