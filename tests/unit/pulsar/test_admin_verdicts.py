"""What the commands of pulsar-admin did contradicts no verdict."""

from __future__ import annotations

import pytest

from tests.pulsar.admin_script import Group, Line, left_out, problems, read_groups
from tests.pulsar.admin_tool import Command

LIST = "tenants list"


def test_every_command_does_what_its_verdict_says() -> None:
    assert list(problems(read_groups())) == []


@pytest.mark.parametrize(
    ("verdict", "line", "problem"),
    [
        ("works", Line(run=LIST, code=1, status=404, prints="there is no tenant"), "never works"),
        ("differs", Line(run=LIST), "no verdict"),
        ("works: well", Line(run=LIST), "no verdict"),
        ("not here", Line(run=LIST), "but works"),
        (
            "not here",
            Line(run=LIST, code=1, status=404, prints="there is no path '/x' at this broker"),
            "ends with 404",
        ),
        (
            "not here",
            Line(run=LIST, code=1, status=405, prints="'/x' does not support POST; use GET"),
            "ends with 405",
        ),
        ("not here", Line(run=LIST, code=1, status=500, prints="internal error"), "ends with 500"),
        (
            "not here",
            Line(run=LIST, code=1, prints="java.lang.Error\n\tat x.Y.z(Y.java:1)"),
            "ends with 1",
        ),
        ("not here", Line(run=LIST, code=1, status=412), "ends with 412"),
        ("works", Line(run="tenants get acme"), "has no verdict"),
    ],
)
def test_a_contradiction_is_found(verdict: str, line: Line, problem: str) -> None:
    assert problem in "\n".join(
        problems([Group(name="tenants", verdicts={LIST: verdict}, lines=[line])])
    )


def test_a_command_or_option_that_the_script_leaves_out_is_found() -> None:
    group = Group(
        name="tenants", verdicts={LIST: "works", "tenants rename": "works"}, lines=[Line(run=LIST)]
    )
    options = (("-h", "--help"), ("-a", "--all"))
    commands = [
        Command(name=name, options=options) for name in (LIST, "tenants get", "functions list")
    ]
    assert list(left_out([group], commands)) == [
        "tenants list: no line has its option -a",
        "tenants get: the script leaves it out",
        "tenants get: no line has its option -a",
        "tenants rename: the tool has no such command",
    ]
