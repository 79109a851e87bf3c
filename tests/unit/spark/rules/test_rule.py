"""Tests of the rules as data, and of the commands that findings name."""

from __future__ import annotations

import shlex
from typing import Final

import pytest
from typer.testing import CliRunner

from equipoise.brokers.cli.main import app
from equipoise.spark_jobs.rules.checkers import MEMORIES, RULES
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.namespace import NamespaceCase
from equipoise.spark_jobs.rules.rule import Rule, check_rules, checks_on, command_for

BUNDLE: Final = "bundle:t/n/0x00000000_0xffffffff"
BY_VERDICT_ONLY: Final = {
    "wrong_actor",
    "unfit_target",
    "stale_accepted",
    "sequence_fell",
    "dead_publisher_accepted",
}
BY_OTHERS: Final = {"audit_broken"}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_is_described_in_sentences(rule: Rule) -> None:
    for text in (rule.says, rule.means, rule.remedy):
        assert text.endswith(".")
        assert text[0].isupper() or text[0] == "`"


def test_each_rule_has_a_function_or_verdicts() -> None:
    checked = {
        rule.name
        for kind in (*MEMORIES, "evidence", "ownership")
        for rule, _ in checks_on(kind)  # type: ignore[arg-type]
    }
    # Those have no cases: see test_pulsar.py.
    of_pulsar = {name for name, rule in RULES.items() if rule.source}
    assert BY_VERDICT_ONLY | BY_OTHERS | of_pulsar == RULES.keys() - checked
    assert all(RULES[name].accepted_instead_of for name in BY_VERDICT_ONLY)


@pytest.mark.parametrize(
    ("record", "verdict", "expected", "broken"),
    [
        ({"kind": "bundle"}, "accepted", "stale", "stale_accepted"),
        ({"kind": "genesis"}, "accepted", "stale", "genesis_twice"),
        ({"kind": "broker", "status": "down"}, "accepted", "still_alive", "false_proof"),
        ({"kind": "broker", "status": "removed"}, "accepted", "still_alive", "verdict_differs"),
        ({"kind": "bundle"}, "stale", "accepted", "verdict_differs"),
        ({"kind": "bundle"}, "late", "stale", "verdict_differs"),
    ],
)
def test_verdicts_that_differ(
    record: dict[str, object], verdict: str, expected: str, broken: str
) -> None:
    context = {"checked_by": "log:", "expected": expected}
    fact = Fact(
        subject="log:",
        source="channel",
        offset=17,
        at_ms=5,
        record=record,
        verdict=verdict,
        context=context,
    )
    [finding] = check_rules("namespace", NamespaceCase(fact))
    assert (broken, "log:", (17,), 5, None) == (
        finding.rule,
        finding.subject,
        finding.offsets,
        finding.at_ms,
        finding.publisher,
    )
    assert f"was {verdict}; the audit expects {expected}" in finding.text


@pytest.mark.parametrize(
    ("rule", "subject"),
    [
        ("illegal_step", BUNDLE),
        ("hole", "namespace:t/n"),
        ("premature_down", "broker:b1"),
        ("records_lost", "log:"),
        ("malformed", "log:"),
    ],
)
def test_the_command_line_accepts_each_command(rule: str, subject: str) -> None:
    words = shlex.split(command_for(rule, subject, (9, 17)).replace("{log}", "sqlite:nothing.db"))
    assert "equipoise" == words[0]
    outcome = CliRunner().invoke(app, [*words[1:], "--help"])
    assert 0 == outcome.exit_code


@pytest.mark.parametrize(
    ("rule", "subject", "command"),
    [
        # The honest record may be the later one, so both are shown.
        (
            "sequence_reused",
            "broker:b1",
            "equipoise channel show 9 --log {log} && equipoise channel show 17 --log {log}",
        ),
        # A name from garbage never becomes a word of a command.
        ("illegal_step", "bundle:$(reboot)/{x}", "equipoise channel show 17 --log {log}"),
    ],
)
def test_commands(rule: str, subject: str, command: str) -> None:
    assert command == command_for(rule, subject, (9, 17))
