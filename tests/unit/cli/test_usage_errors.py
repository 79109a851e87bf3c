"""Usage errors are printed once, as text or JSON, before anything is opened, created or started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.channel.system.clocks import Deadline
from tests.channels.folding import NAMESPACE
from tests.unit.cli.fabricated import LEFT_RANGE, owned_channel, run, write

SPLIT = ("namespaces", "split-bundle", NAMESPACE, "-b", LEFT_RANGE)
ISOLATE = ("policies", "set-isolation", "x", "--namespaces", "t")

# The words after `equipoise`, the error that `--json` names, and a part of the message.
USAGE_ERRORS = {
    "no command": (("bogus",), "UsageError", "No such command 'bogus'"),
    "no option": (("namespaces", "list", "--bogus"), "NoSuchOption", "No such option: --bogus"),
    "no argument": (
        ("namespaces", "create"),
        "MissingParameter",
        "Missing argument 'TENANT/NAMESPACE'",
    ),
    "no log": (("namespaces", "list"), "MissingParameter", "Missing option '--log'"),
    "no number": (
        ("channel", "show", "1.5", "--log", "{log}"),
        "BadParameter",
        "Input should be a valid integer",
    ),
    "a number below zero": (
        ("channel", "at", "-1", "--log", "{log}"),
        "NoSuchOption",
        "-1 (negative numbers are not allowed)",
    ),
    "too great a number": (
        ("channel", "at", "9" * 20, "--log", "{log}"),
        "BadParameter",
        "beyond the greatest offset, 9223372036854775807",
    ),
    "too much": (
        ("brokers", "leader-broker", "x", "--log", "{log}"),
        "UsageError",
        "Got unexpected extra argument(s) (x)",
    ),
    "a check of a command": (
        ("up", "--data", "x", "--http-port", "65534"),
        "BadParameter",
        "the last of 3 ports would be above 65535",
    ),
    "a file for a folder": (("up", "--data", "{file}"), "BadParameter", "is a file"),
    "a namespace that no path can name": (
        ("namespaces", "create", "shop/..", "--log", "{log}"),
        "InvalidName",
        "neither of them '.' or '..'",
    ),
    "an empty directory of a broker": (
        ("broker", "--data", "", "--log", "{log}"),
        "BadParameter",
        "the name is empty",
    ),
    "an empty directory of a cluster": (("up", "--data="), "BadParameter", "the name is empty"),
    "an empty directory of the dead": (
        ("brokers", "declare-dead", "--data", "", "--log", "{log}"),
        "BadParameter",
        "the name is empty",
    ),
    "an empty archive": (("spark", "verify", "--archive", ""), "BadParameter", "the name is empty"),
    "an empty file of evidence": (
        ("broker", "--data", "x", "--evidence", "", "--log", "{log}"),
        "BadParameter",
        "the name is empty",
    ),
    "a folder for a file": (
        ("broker", "--data", "x", "--evidence", "..", "--log", "{log}"),
        "BadParameter",
        "'..' is a directory",
    ),
    "an empty log of a cluster": (("up", "--data", "x", "--log", ""), "InvalidConfig", "log_url"),
    "an empty log": (("brokers", "list", "--log", "sqlite:"), "CallerError", "it has no path"),
    "a log in memory": (
        ("brokers", "list", "--log", "memory:x"),
        "CallerError",
        "known only to the process that made it",
    ),
    "a cluster in memory": (
        ("up", "--data", "x", "--log", "memory:x"),
        "CallerError",
        "the processes of a cluster cannot share memory",
    ),
    "an empty file": (
        ("brokers", "list", "--log", "sqlite:{file}"),
        "LogNotBegun",
        "is empty; start a broker on it",
    ),
    "no service": (
        ("up", "--data", "x", "--service", "nowhere:Nothing"),
        "CallerError",
        "there is no module nowhere",
    ),
    "an unknown setting": (
        ("up", "--data", "x", "--set", "bogus=1"),
        "InvalidConfig",
        "bogus: there is no such setting",
    ),
    "a setting of another": (
        ("up", "--data", "x", "--set", "http_port=1"),
        "InvalidConfig",
        "it is each broker's own in a local cluster",
    ),
    "a broker's settings": (
        ("broker", "--data", "x", "--log", "{log}", "--set", "lease_ms=1"),
        "InvalidConfig",
        "lease_ms is 1 ms, which is not safe",
    ),
    "unsafe settings": (
        ("up", "--data", "x", "--set", "lease_ms=1"),
        "InvalidConfig",
        "lease_ms is 1 ms, which is not safe",
    ),
    "positions nobody takes": (
        (*SPLIT, "-san", "range_equally_divide", "-sb", "5", "--log", "{log}"),
        "CallerError",
        (
            "range_equally_divide finds its positions itself; use specified_positions_divide to"
            " give them"
        ),
    ),
    **{
        f"an algorithm of {kind}": (
            (*SPLIT, "-san", name, "--log", "{log}"),
            "InvalidRequest",
            "is not a name of up to 1024 printable",
        )
        for kind, name in (("no text", "a\x1bb"), ("too much text", "a" * 1_025))
    },
    "too long a list of points": (
        ("namespaces", "create", "shop/new", "--boundaries", "0," * 700_000, "--log", "{log}"),
        "InvalidName",
        "is not a list of points",
    ),
    "too many points": (
        (
            *("namespaces", "create", "shop/new", "--boundaries"),
            ",".join(map(str, (*range(4_097), 0xFFFFFFFF))),
            *("--log", "{log}"),
        ),
        "CallerError",
        "a namespace is created with 1 to 4096 bundles, not 4097",
    ),
    "a broker of no text": (
        (*ISOLATE, "--primary", "\udc80", "--log", "{log}"),
        "InvalidPolicy",
        "must be a text of printable characters",
    ),
    "too many brokers": (
        (*ISOLATE, *(f"--primary=b{number}" for number in range(256)), "--log", "{log}"),
        "InvalidPolicy",
        "entries, and may have 256",
    ),
}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log, and a working folder in which nothing may be made but an empty file."""
    url = write(owned_channel().entries, tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "empty").touch()
    monkeypatch.chdir(tmp_path / "work")
    return url


@pytest.mark.parametrize("case", USAGE_ERRORS)
def test_a_usage_error_is_printed_once_and_nothing_is_created(case: str, log: str) -> None:
    line, kind, message = USAGE_ERRORS[case]
    arguments = [word.replace("{log}", log).replace("{file}", "empty") for word in line]
    told = run(*arguments)
    assert (2, "", 1) == (
        told.exit_code,
        told.stdout,
        told.stderr.lower().count("error:"),
    ), told.stderr
    assert message in told.stderr

    told = run(*arguments, "--json")
    document = json.loads(told.stderr)
    assert (2, "", kind) == (told.exit_code, told.stdout, document["error"])
    assert message in document["message"]
    assert ["empty"] == [path.name for path in Path.cwd().iterdir()]
    assert 0 == Path("empty").stat().st_size


def test_json_after_a_double_dash_is_a_word(log: str) -> None:
    told = run("bundles", "owner", "--log", log, "--bogus", "--", NAMESPACE, "--json")
    assert (2, True) == (told.exit_code, told.stderr.startswith("Usage: equipoise bundles owner"))
    assert 0 == run("bundles", "owner", "--log", log, "--", NAMESPACE, "--json").exit_code


def test_a_usage_error_as_json_has_the_usage_line(log: str) -> None:
    document = json.loads(run("channel", "show", "--json", "--log", log).stderr)
    assert ("equipoise channel show [OPTIONS] {OFFSET}", "Missing argument 'OFFSET'.") == (
        document["usage"],
        document["message"],
    )


@pytest.mark.parametrize("command", [("verify",), ("tail",), ("show", "1")])
def test_reading_ends_at_the_deadline(
    command: tuple[str, ...], log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadline, "remaining_ms", lambda _: 0)
    told = run("channel", *command, "--timeout", "7", "--json", log=log)
    document = json.loads(told.stderr)
    assert (3, "DeadlineExceeded", 7_000) == (
        told.exit_code,
        document["error"],
        document["waited_ms"],
    )
