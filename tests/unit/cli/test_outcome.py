"""How commands end: one line and one exit code for each error, and neither for Ctrl-C and a closed
pipe.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from equipoise.brokers.cli.channel_options import publisher
from equipoise.brokers.cli.outcome import Commands, ExitCode, output_failed
from equipoise.brokers.errors import InvalidConfig, Rejected, cancelled
from equipoise.channel.core import propose
from equipoise.channel.core.errors import (
    Bug,
    DeadlineExceeded,
    InvalidName,
    LogUnavailable,
    OperatorError,
    OutcomeUnknown,
)
from equipoise.channel.system.log_lines import printable
from tests.unit.cli.fabricated import owned_channel, run, write

CASES = {
    "refused": (Rejected(key="k", reason="stale", problem=None, offset=7), ExitCode.REFUSED),
    "cancelled": (cancelled(bundle="b", move="split", problem="p"), ExitCode.REFUSED),
    "caller": (InvalidName(what="namespace", name="n", expected="e"), ExitCode.USAGE),
    "config": (InvalidConfig(problems=("p",)), ExitCode.USAGE),
    "peer": (LogUnavailable(log="l", problem="p"), ExitCode.UNAVAILABLE),
    "unknown": (OutcomeUnknown(log="l", subject="s", problem="p"), ExitCode.UNAVAILABLE),
    "deadline": (DeadlineExceeded(what="w", waited_ms=1), ExitCode.UNAVAILABLE),
    "operator": (OperatorError("p"), ExitCode.OPERATOR),
    "bug": (Bug("b"), ExitCode.OPERATOR),
    "output": (output_failed("the standard output", OSError("p")), ExitCode.OPERATOR),
    "system": (PermissionError(13, "Permission denied", "file"), ExitCode.OPERATOR),
}


def failing(error: BaseException) -> typer.Typer:
    """A program with a command that raises `error`, under the group that `equipoise` uses."""
    program = typer.Typer(cls=Commands)

    @program.command()
    def fail() -> None:
        raise error

    @program.callback()
    def root() -> None:
        """Make a group of a single command."""

    return program


@pytest.mark.parametrize("case", CASES)
def test_each_error_is_a_line_and_a_code(case: str) -> None:
    error, code = CASES[case]
    result = CliRunner().invoke(failing(error), ["fail"])
    assert ("", f"error: {error}\n", code) == (result.stdout, result.stderr, result.exit_code)


def test_a_full_disk_under_the_output_is_reported() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    result = CliRunner().invoke(failing(error), ["fail"])
    told = (
        "error: the standard output cannot be written: No space left on device; free space on its"
        " disk"
    )
    assert ("", told, 4) == (result.stdout, result.stderr.partition(",")[0], result.exit_code)
    named = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")
    assert f"error: {named}\n" == CliRunner().invoke(failing(named), ["fail"]).stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    "arguments",
    [("channel", "tail"), ("--help",)],
)
def test_a_full_disk_ends_any_command_with_one_line(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    url = write(owned_channel().entries, tmp_path)
    command = [sys.executable, "-m", "equipoise.brokers.cli", *arguments]
    with Path("/dev/full").open("wb") as full:
        environment = {**os.environ, "EQUIPOISE_LOG": url}
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    assert (4, 1) == (result.returncode, result.stderr.count("\n")), result.stderr
    assert "the standard output cannot be written: No space left on device" in result.stderr


def test_ctrl_c_is_quiet() -> None:
    result = CliRunner().invoke(failing(KeyboardInterrupt()), ["fail"])
    assert ("", "", 130) == (result.stdout, result.stderr, result.exit_code)


@pytest.mark.integration
def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    channel = owned_channel()
    for number in range(3_000):
        channel.put(
            propose.set_policy(channel.admin(), channel.view, name=f"policy-{number}", document={})
        )
    command = [
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "channel",
        "tail",
        "--json",
        "--from",
        "0",
        "--log",
        write(channel.entries, tmp_path),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert '{"offset": 1, ' in process.stdout.readline()
        process.stdout.close()
        assert (141, "") == (process.wait(timeout=60), process.stderr.read())


@pytest.mark.integration
def test_tail_follow_ends_with_ctrl_c(tmp_path: Path) -> None:
    channel = owned_channel()
    url = write(channel.entries, tmp_path)
    command = [
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "channel",
        "tail",
        "-f",
        "-n",
        "1",
        "--log",
        url,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "open       tenant/ns/0x80000000_0xffffffff" in process.stdout.readline()
        assert 0 == run("namespaces", "create", "shop/orders", log=url).exit_code
        # The first record has no time.
        day, record = process.stdout.readline(), process.stdout.readline()
        assert (10, True) == (len(day.strip()), "create     shop/orders  4 bundles" in record)
        process.send_signal(signal.SIGINT)
        assert (130, "", "") == (
            process.wait(timeout=60),
            process.stdout.read(),
            process.stderr.read(),
        )


@pytest.mark.integration
def test_characters_missing_from_the_encoding_are_escaped(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.accept(propose.unload(channel.admin(), channel.bundle(), reason="Grüße, 漢字"))
    command = [
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "channel",
        "tail",
        "-n",
        "1",
        "--log",
        write(channel.entries, tmp_path),
    ]
    result = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"}
    )
    assert (0, b"", True) == (
        result.returncode,
        result.stderr,
        b"Gr\xfc\xdfe, \\u6f22\\u5b57" in result.stdout,
    ), result.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, Grüße, 漢字", "plain, Grüße, 漢字"),
        ("two\nlines\tand\x1b[31mred", r"two\nlines\tand\x1b[31mred"),
        ("\udc80", r"\udc80"),
        ("\u202eback", r"\u202eback"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, expected: str) -> None:
    assert expected == printable(text)


def nobody() -> str:
    """As `getpass.getuser` where a user has no name."""
    raise KeyError("getpwuid(): uid not found: 4711")


def test_the_default_admin_is_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "admin:erin" == publisher("erin")
    monkeypatch.setenv("LOGNAME", "frank")
    assert "admin:frank" == publisher(None)
    monkeypatch.setattr("getpass.getuser", nobody)
    assert f"admin:uid-{os.getuid()}" == publisher(None)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\udc80", "a" * 256])
def test_an_unprintable_admin_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="--as"):
        publisher(name)


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (0, True) == (result.exit_code, result.stdout.startswith("equipoise 0."))


def test_help_lists_every_group_without_importing_it() -> None:
    program = (
        "import sys; from equipoise.brokers.cli.main import app; app(['--help'],"
        " standalone_mode=False); print(sorted(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    *lines, loaded = result.stdout.splitlines()
    assert len(lines) <= 33
    begin = lines.index("Commands:") + 1
    assert [
        "broker",
        "up",
        "namespaces",
        "bundles",
        "policies",
        "brokers",
        "plan",
        "decisions",
        "balancing",
        "lab",
        "pulsar",
        "channel",
        "archive",
        "audit",
        "rights",
        "tokens",
        "report",
        "spark",
    ] == [line.split()[0] for line in lines[begin:]]
    assert [] == [
        name
        for name in ("aiohttp", "pydantic", "rich", "sqlite3", "equipoise.channel.core.view")
        if f"'{name}'" in loaded
    ]
