"""Tests of the catalogue of rules, and of the commands that findings name."""

from __future__ import annotations

import shlex
from typing import Final

import pytest
from typer.testing import CliRunner

from equipoise.brokers.cli.main import app
from equipoise.spark_jobs.rules.catalogue import BY_NAME, RULES, command, finding
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.transitions import ACCEPTED_ALTHOUGH, ACCEPTED_ALTHOUGH_OF

BUNDLE: Final = "bundle:t/n/0x00000000_0xffffffff"


def test_each_rule_is_there_once() -> None:
    """No two rules have one name."""
    assert len(RULES) == len(BY_NAME)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_is_told_in_sentences(rule: object) -> None:
    """What a rule says, what it means when it is broken, and what to do are sentences, each ended."""
    for text in (getattr(rule, name) for name in ("says", "means", "remedy")):
        assert text.endswith(".")
        assert text[0].isupper() or text[0] == "`"


def test_each_way_to_be_accepted_has_a_rule() -> None:
    """The tables by which a wrong acceptance is named name rules of the catalogue only."""
    assert set() == {*ACCEPTED_ALTHOUGH.values(), *ACCEPTED_ALTHOUGH_OF.values()} - BY_NAME.keys()


@pytest.mark.parametrize(
    ("rule", "subject"),
    [("illegal_step", BUNDLE), ("hole", "namespace:t/n"), ("premature_down", "broker:b1"), ("records_lost", "log:"), ("malformed", "log:")],
)
def test_each_command_is_one(rule: str, subject: str) -> None:
    """What a finding says to run is understood by the command line."""
    words = shlex.split(command(rule, subject, (9, 17)).replace("{log}", "sqlite:nothing.db"))
    assert "equipoise" == words[0]
    outcome = CliRunner().invoke(app, [*words[1:], "--help"])
    assert 0 == outcome.exit_code


def test_records_of_which_one_is_forged_are_shown_together() -> None:
    """Where two records bear one number, the honest one may be the later: both are shown."""
    expected = "equipoise channel show 9 --log {log} && equipoise channel show 17 --log {log}"
    assert expected == command("sequence_reused", "broker:b1", (9, 17))


def test_a_name_that_a_shell_would_read() -> None:
    """A name from garbage on the log is shown by its offset, and never as a word of a command."""
    assert "equipoise channel show 17 --log {log}" == command("illegal_step", "bundle:$(reboot)/{x}", (17,))


def test_a_finding_of_a_fact() -> None:
    """A finding takes from its fact whatever it is not told, and a publisher only if it is a text."""
    fact = Fact(subject=BUNDLE, source="channel", offset=17, at_ms=5, record={"publisher": 7})
    found = finding("illegal_step", fact, "so it was")
    assert ((17,), 5, None, BUNDLE) == (found.offsets, found.at_ms, found.publisher, found.subject)
