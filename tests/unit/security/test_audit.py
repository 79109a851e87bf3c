"""Refusals are logged with who and what, and an attacker cannot fill the disk with them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.security.audit import INTERVAL_MS, OTHERS, PAIRS_MAX, Audit
from equipoise.brokers.security.identity import Fault, Surface


class Lines(logging.Handler):
    """The fields of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.fields.append({**record.__dict__, "text": record.getMessage()})


@contextmanager
def lines() -> Iterator[list[dict[str, object]]]:
    logger, handler = logging.getLogger("equipoise.brokers.security.audit"), Lines()
    logger.addHandler(handler)
    try:
        yield handler.fields
    finally:
        logger.removeHandler(handler)


def test_a_line_shows_who_asked_for_what_and_why_it_was_refused() -> None:
    with lines() as found:
        Audit(broker="b", now_ms=lambda: 0).refused(
            Surface.HTTP,
            what="POST /x",
            why="it may only read",
            fault="rights",
            client="10.0.0.7",
            role="viewer",
        )
    (line,) = found
    expected = {
        "broker": "b",
        "surface": "http",
        "role": "viewer",
        "client": "10.0.0.7",
        "what": "POST /x",
        "fault": "rights",
        "left_out": 0,
    }
    assert expected == {name: line[name] for name in expected}
    assert ("refused a client: it may only read", "WARNING") == (line["text"], line["levelname"])


LINES_A_MINUTE = 65
"""What the page about security promises."""

refusals = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(0, 2 * PAIRS_MAX), st.sampled_from(list(Fault))),
    max_size=400,
)


@given(steps=refusals)
def test_no_minute_has_more_lines_than_its_bound_and_every_refusal_is_counted(
    steps: list[tuple[int, int, Fault]],
) -> None:
    now_ms = 0
    audit = Audit(broker="b", now_ms=lambda: now_ms)
    logged_ms = list[int]()
    with lines() as found:
        for pause_ms, address, fault in steps:
            now_ms += pause_ms // 100
            before = len(found)
            audit.refused(
                Surface.PULSAR, what="CONNECT", why="no", fault=fault, client=str(address)
            )
            logged_ms += [now_ms] * (len(found) - before)
            # The first refusal of an address is never lost among those of others, unless there are
            # very many of them.
            assert {str(address), OTHERS} & {line["client"] for line in found}
            assert len([at for at in logged_ms if now_ms - at < INTERVAL_MS]) <= LINES_A_MINUTE
        now_ms += INTERVAL_MS
        audit.refused(
            Surface.PULSAR, what="CONNECT", why="no", fault=Fault.MISSING, client="the last"
        )
    assert len(steps) + 1 == sum(1 + int(str(line["left_out"])) for line in found)


def test_an_address_that_is_quiet_gives_its_place_to_another() -> None:
    now_ms = 0
    audit = Audit(broker="b", now_ms=lambda: now_ms)
    with lines() as found:
        for address in range(PAIRS_MAX + 1):
            audit.refused(
                Surface.HTTP, what="GET /", why="no", fault="missing", client=str(address)
            )
        now_ms = INTERVAL_MS
        audit.refused(Surface.HTTP, what="GET /", why="no", fault="missing", client="new")
        assert [OTHERS, "new"] == [line["client"] for line in found[-2:]]
