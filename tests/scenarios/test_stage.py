"""The stage itself: its checks bite, and its language refuses what it does not know."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.handle import Handle
from tests.scenarios import stage, stories
from tests.scenarios.language import UnknownCommandError, perform, play
from tests.scenarios.stage import Stage
from tests.scenarios.words import duration_ms, full_name, shortened


def test_two_owners_are_found() -> None:
    cluster = play("cluster a b with 1 bundle")
    own = cluster.process("a").agent.handles[full_name("00_ff")]
    lease = cluster.process("b").agent.lease
    cluster.process("b").given.append(
        Handle(
            bundle=full_name("80_ff"),
            namespace=own.namespace,
            low=1 << 31,
            high=own.high,
            token=own.token,
            lease=lease,
            is_open=True,
        )
    )
    with pytest.raises(AssertionError, match="a and b both serve"):
        perform(cluster, "advance 10ms")


def test_a_handle_that_the_agent_has_forgotten_is_watched() -> None:
    """Every handle that a service was ever given is checked, not only those that the agent still
    knows.
    """
    cluster = play("cluster a b with 1 bundle")
    given = cluster.process("a").given[0]
    perform(cluster, "transfer 00_ff to b by admin")
    given.is_open = True
    with pytest.raises(AssertionError, match="a and b both serve"):
        perform(cluster, "show bundles")


def test_a_view_that_is_not_what_the_log_says_is_found() -> None:
    """A broker whose view differs from the fold of the log ends the story, unless the story has
    planted that itself.
    """
    cluster = play("cluster a b with 1 bundle", "corrupt 00_ff at b")
    cluster.process("b").is_corrupt = False
    with pytest.raises(AssertionError, match="b holds another view"):
        perform(cluster, "show bundles")


def test_a_broker_that_wants_to_be_woken_in_the_past_is_found() -> None:
    cluster = play("brokers a")
    cluster.now_ms += 5_000
    with pytest.raises(AssertionError, match="a asks to be woken"):
        stage.no_hurry(cluster.process("a"))


def test_brokers_that_never_come_to_rest_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_STEPS_MAX", 1)
    with pytest.raises(AssertionError, match="for ever"):
        play("brokers a b")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "advance",
        "advance 3 s",
        "transfer 00_ff to b",
        "cluster with 1 bundle",
        "show bundles now",
    ],
)
def test_what_is_no_command_is_refused(line: str) -> None:
    with pytest.raises(UnknownCommandError, match="is no command"):
        perform(Stage(), line)


def test_a_story_is_rewritten_by_what_happens() -> None:
    """What was expected is replaced by what happened, prose stays, and a story that is right stays
    as it is.
    """
    wrong = "A story.\n\n> brokers a\n    9 nonsense\n\nThe end.\n"
    right = stories.play(wrong).text
    assert right.startswith("A story.\n\n> brokers a\n    1  genesis    story  by a")
    assert right.endswith("\n\nThe end.\n")
    assert right == stories.play(right).text


def test_bundles_have_short_names() -> None:
    for short, full in {
        "00_80": "t/n/0x00000000_0x80000000",
        "80_ff": "t/n/0x80000000_0xffffffff",
        "t/m/40_60": "t/m/0x40000000_0x60000000",
        "7fffffff_ff": "t/n/0x7fffffff_0xffffffff",
    }.items():
        assert short == shortened(full)
        assert full == full_name(short)


def test_durations_are_in_milliseconds() -> None:
    assert [250, 3_000, 86_400_000] == [duration_ms(text) for text in ("250ms", "3s", "24h")]
