"""One broker process of a local cluster: how its end is described, and when it is restarted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.local.local_broker import (
    RESTART_MS_MAX,
    RESTART_MS_MIN,
    STEADY_MS,
    LocalBroker,
    ending_of,
    ports_of,
)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (4, "ended with exit code 4"),
        (-9, "was killed by SIGKILL"),
        (-999, "was killed by signal 999"),
    ],
)
def test_an_end_is_described_by_its_code(code: int, text: str) -> None:
    """A signal is named, if it has a name."""
    assert text == ending_of(code)


def test_pauses_grow_until_it_is_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses of a broker that dies repeatedly double, up to a bound. One that ran for long
    restarts at once.
    """
    now_ns = 0
    monkeypatch.setattr(
        "equipoise.brokers.local.local_broker.time", SimpleNamespace(monotonic_ns=lambda: now_ns)
    )
    broker = LocalBroker(tmp_path, 8080)
    assert [RESTART_MS_MIN, 1_000, 2_000, 4_000, 8_000, RESTART_MS_MAX, RESTART_MS_MAX] == [
        broker.pause_ms() for _ in range(7)
    ]
    now_ns = STEADY_MS * 1_000_000
    assert RESTART_MS_MIN == broker.pause_ms()


def test_the_last_output_is_the_last_error_or_the_last_line(tmp_path: Path) -> None:
    """Earlier output does not count, and the output need not be text."""
    output = LocalBroker(tmp_path, 8080)
    assert output.last_output() is None
    output.file.write_bytes(b"{}\n" * 10_000 + b"\xff no room\n\n")
    assert "\ufffd no room" == output.last_output()
    for line, error in (
        ("error: no room", "error: no room"),
        ('{"level":"error","event":"no room","error":"..."}', "no room"),
    ):
        output.file.write_text(
            f'{{"level":"info"}}\nerror: an older one\n{line}\n{{"level":"warning"}}\n[1, 2\n7\n'
        )
        assert error == output.last_output()


def test_the_output_of_an_earlier_process_does_not_count(tmp_path: Path) -> None:
    """A process that printed nothing did not end by the error of the process before it."""
    output = LocalBroker(tmp_path, 8080)
    output.file.write_text("error: an older one\n")
    with output.of_process(["--help"], {}) as process:
        process.wait()
    assert "error: an older one" != output.last_output()
    with output.file.open("a") as file:
        file.write("error: a new one\n")
    assert "error: a new one" == output.last_output()


@pytest.mark.parametrize(
    ("code", "output", "text"),
    [
        (0, "stopped", "ended with exit code 0"),
        (4, "error: no room", "ended with exit code 4: error: no room; its log: {file}"),
        (1, "", "ended with exit code 1; its log: {file}"),
        (-9, '{"level":"info"}', "was killed by SIGKILL; its log: {file}"),
        (-9, "error: no room", "was killed by SIGKILL: error: no room; its log: {file}"),
    ],
)
def test_an_end_is_described_with_its_reason(
    code: int, output: str, text: str, tmp_path: Path
) -> None:
    """If a process failed, the text has its last error and its log file."""
    file = LocalBroker(tmp_path, 8080)
    file.file.write_text(output)
    assert text.format(file=file.file) == file.ending(code)


def test_ports_are_consecutive() -> None:
    """Broker i has the given ports plus i; without Pulsar it has one port."""
    assert [(8080, 6650), (8081, 6651), (8082, 6652)] == ports_of(8080, 6650, 3)
    assert [(8080, None), (8081, None)] == ports_of(8080, None, 2)
    assert [(8080, 8082), (8081, 8083)] == ports_of(8080, 8082, 2)


@pytest.mark.parametrize("pulsar_port", [8078, 8080, 8081, 8082])
def test_ports_that_overlap_are_refused(pulsar_port: int) -> None:
    """The error names both ranges."""
    problem = (
        f"pulsar_port: the ports of 3 brokers from {pulsar_port} on overlap with those from"
        " http_port=8080 on"
    )
    with pytest.raises(InvalidConfig, match=problem):
        ports_of(8080, pulsar_port, 3)


def test_no_free_port_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free ports for both protocols are drawn together, without named and taken ones."""

    class Server:
        """A machine on which one port is taken."""

        def __init__(self, address: tuple[str, int]) -> None:
            if address[1] == 10_001:
                raise OSError

        def __enter__(self) -> None:
            """Nothing is held."""

        def __exit__(self, *_: object) -> None:
            """Nothing is held."""

    monkeypatch.setattr(
        "equipoise.channel.system.free_ports.socket", SimpleNamespace(create_server=Server)
    )
    monkeypatch.setattr("equipoise.channel.system.free_ports.PORTS", range(10_000, 20_000))
    monkeypatch.setattr(
        "equipoise.channel.system.free_ports.random",
        SimpleNamespace(sample=lambda ports, count: ports[:count]),
    )
    assert [(10_000, 10_003), (10_002, 10_004)] == ports_of(0, 0, 2)
    assert [(10_002, 10_000), (10_003, 10_001)] == ports_of(0, 10_000, 2)
    assert [(10_000, None)] == ports_of(0, None, 1)


def test_secrets_go_to_a_process_by_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone on the machine can read the arguments of a process."""
    started: list[tuple[Sequence[str], Mapping[str, str]]] = []
    monkeypatch.setattr(
        LocalBroker,
        "of_process",
        lambda _, command, environment: started.append((command, environment)),
    )
    settings: dict[str, str | int] = {
        "broker_token": "planted-secret",
        "token_secret_key": "planted-secret",
        "lease_ms": 4_000,
    }
    LocalBroker(tmp_path, 8081).start(
        log_url="sqlite:x",
        services=[],
        settings=settings,
        environment={"A": "B"},
        evidence=False,
        at_offset=0,
    )
    ((command, environment),) = started
    assert "planted-secret" not in " ".join(command)
    assert "lease_ms=4000" in command
    assert {
        "A": "B",
        "EQUIPOISE_BROKER_TOKEN": "planted-secret",
        "EQUIPOISE_TOKEN_SECRET_KEY": "planted-secret",
    } == environment
