"""Log lines: their fields, and values of any type in them."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.system.log_lines import JsonLines, PlainLines, configure, handler_for


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


class Unspeakable:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def event(message: object, *arguments: object, **fields: object) -> logging.LogRecord:
    """An event of the logger `brokers.runtime.worker` with these fields."""
    record = logging.LogRecord(
        "equipoise.brokers.runtime.worker",
        logging.WARNING,
        "worker.py",
        1,
        message,
        arguments,
        None,
    )
    record.created = 1_700_000_000.25
    record.__dict__.update(fields)
    return record


def test_an_event_is_one_json_object() -> None:
    line = JsonLines().format(
        event("append of %s failed", "x", bundle="t/n/0x0_0x1", offset=7, reason=None)
    )
    assert {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "event": "append of x failed",
        "logger": "equipoise.brokers.runtime.worker",
        "bundle": "t/n/0x0_0x1",
        "offset": 7,
        "reason": None,
    } == json.loads(line)


def test_an_event_is_readable_at_a_terminal() -> None:
    line = PlainLines().format(event("two\nlines", bundle="b", offset=7, text="\x1b[2J"))
    assert line.endswith(r" WARNING two\nlines  bundle=b offset=7 text=\x1b[2J")


def test_an_error_brings_its_traceback() -> None:
    record = event("close failed")
    try:
        int("broken")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["error"].endswith("'broken'")
    assert "close failed\nTraceback" in PlainLines().format(record)


def test_fields_do_not_hide_the_envelope() -> None:
    assert "warning" == json.loads(JsonLines().format(event("x", level="none at all")))["level"]


@pytest.mark.parametrize(
    "value", [2**70, "\ud800", Unspeakable(), {1: {2: (3,)}}, b"\xff", float("nan"), object()]
)
def test_a_field_of_any_type_is_logged(value: object) -> None:
    json.loads(JsonLines().format(event("x", value=value)))
    assert "value=" in PlainLines().format(event("x", value=value))


def test_a_recursive_structure_is_logged() -> None:
    knot: list[object] = []
    knot.append(knot)
    assert "[[...]]" == json.loads(JsonLines().format(event("x", knot=knot)))["knot"]


@pytest.mark.parametrize("arguments", [(), (1, 2), (Unspeakable(),)])
def test_a_message_with_wrong_arguments_is_logged(arguments: tuple[object, ...]) -> None:
    for formatter in (JsonLines(), PlainLines()):
        assert "to %s" in formatter.format(event("to %s", *arguments))


@given(
    st.text(),
    st.dictionaries(st.text(), st.text() | st.integers() | st.binary() | st.floats() | st.none()),
)
def test_any_event_is_one_line(message: str, fields: dict[str, object]) -> None:
    record = event(message)
    record.__dict__.update((f"field {name}", value) for name, value in fields.items())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert message.encode("utf-8", "backslashreplace").decode() == json.loads(line)["event"]
    assert 1 == len(PlainLines().format(record).splitlines())


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # Else `configure` would close those of pytest.
    root.handlers = []
    yield root
    root.handlers, root.level = handlers, level


def test_a_pipe_gets_json_and_a_terminal_plain_lines(root: logging.Logger) -> None:
    pipe, terminal = io.StringIO(), Terminal()
    configure(pipe)
    logging.getLogger("equipoise.brokers.runtime.worker").info("ready", extra={"broker": "b"})
    logging.getLogger("equipoise.brokers.runtime.worker").debug("unheard")
    assert "b" == json.loads(pipe.getvalue())["broker"]
    root.addHandler(handler_for(terminal))
    logging.getLogger("equipoise.brokers.runtime.worker").info("ready", extra={"broker": "b"})
    assert terminal.getvalue().endswith(" INFO    ready  broker=b\n")
