"""One broker process of a local cluster: how its end is told, and when it is started again.

May live here: what needs no process. The processes themselves are in tests/integration/test_local_cluster.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from brokers.local_broker import RESTART_MS_MAX, RESTART_MS_MIN, STEADY_MS, LocalBroker, ending_of


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, "ended with exit code 0"), (4, "ended with exit code 4"), (-9, "was killed by SIGKILL"), (-999, "was killed by signal 999")],
)
def test_an_end_is_told_in_words(code: int, told: str) -> None:
    """An exit code is told as it is, and a signal by its name, if it has one."""
    assert told == ending_of(code)


def test_pauses_grow_until_it_is_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that dies again and again is started ever more seldom, up to a bound; one that lived for long, at once."""
    now_ns = 0
    monkeypatch.setattr("brokers.local_broker.time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    broker = LocalBroker(tmp_path, 8080)
    assert [RESTART_MS_MIN, 1_000, 2_000, 4_000, 8_000, RESTART_MS_MAX, RESTART_MS_MAX] == [broker.next_pause_ms() for _ in range(7)]
    now_ns = STEADY_MS * 1_000_000
    assert RESTART_MS_MIN == broker.next_pause_ms()


def test_the_last_words_are_the_last_line(tmp_path: Path) -> None:
    """What a broker wrote last tells why it ended, whatever came before, and even if it was no text."""
    broker = LocalBroker(tmp_path, 8080)
    assert "it said nothing" == broker.last_words()
    broker.log_file.write_bytes(b"{}\n" * 10_000 + b"\xfferror: no room\n\n")
    assert "�error: no room" == broker.last_words()
