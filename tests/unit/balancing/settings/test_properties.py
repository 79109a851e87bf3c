"""Java's properties files are read as `java.util.Properties` reads them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.settings.properties import parse_properties
from equipoise.channel.core.errors import OperatorError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    text: str
    expected: dict[str, str]


CASES = (
    Case(text="", expected={}),
    Case(text="a=1\nb = 2\r\nc: 3\rd 4", expected={"a": "1", "b": "2", "c": "3", "d": "4"}),
    Case(text="# a=1\n  ! b=2\n \t\f\n c=3", expected={"c": "3"}),
    Case(text="#x\\\na=1", expected={"a": "1"}),
    Case(text="a=1\na=2", expected={"a": "2"}),
    Case(text="a", expected={"a": ""}),
    Case(text="=1", expected={"": "1"}),
    Case(text="a==1", expected={"a": "=1"}),
    Case(text="a = = 1", expected={"a": "= 1"}),
    Case(text="  \t a\t=\t1 ", expected={"a": "1 "}),
    Case(text="a=1 # no comment", expected={"a": "1 # no comment"}),
    Case(text="a=x.\\\n    \t y\\\r\n  z", expected={"a": "x.yz"}),
    Case(text="a=x\\\n\nb=1", expected={"a": "x", "b": "1"}),
    Case(text="a=x\\\\\nb=1", expected={"a": "x\\", "b": "1"}),
    Case(text="a\\\n#b=c", expected={"a#b": "c"}),
    Case(text="\\\n\n# c\nb=1", expected={"b": "1"}),
    Case(text="a=x\\", expected={"a": "x"}),
    Case(text="a\\=b\\:c\\ d=1", expected={"a=b:c d": "1"}),
    Case(text="a=\\t\\n\\r\\f\\q\\u0042\\u00e9", expected={"a": "\t\n\r\fqBé"}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case.text))
def test_a_text_is_read_as_java_reads_it(case: Case) -> None:
    """Comments, separators, continued lines and escapes."""
    assert case.expected == {entry.key: entry.value for entry in parse_properties(case.text)}


def test_an_entry_has_the_line_of_its_start() -> None:
    assert [("a", 2), ("b", 5)] == [
        (entry.key, entry.line) for entry in parse_properties("# c\na=1\\\n  2\n\nb=3\n")
    ]


@pytest.mark.parametrize("text", ["a=\\u00zz", "b=1\na=\\u12", "\\u=1"])
def test_an_invalid_escape_is_refused(text: str) -> None:
    """Java refuses such a file, too. The error names the line."""
    line = text.count("\n") + 1
    with pytest.raises(OperatorError, match=f"line {line}: .* four hexadecimal digits"):
        parse_properties(text)


@given(text=st.text(alphabet="ab=: \t\f\n\r\\#!u0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = parse_properties(text)
    except OperatorError:
        return
    assert all(entry.line >= 1 for entry in entries)


@given(entries=st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=5))
def test_escaped_entries_are_read_back(entries: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(
            f"\\u{units[place]:02x}{units[place + 1]:02X}" for place in range(0, len(units), 2)
        )

    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in entries.items())
    found = {whole(entry.key): whole(entry.value) for entry in parse_properties(text)}
    assert entries == found


def whole(text: str) -> str:
    """The text with surrogate pairs joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
