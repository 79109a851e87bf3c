"""Nothing that docs/reference/stability.md promises is gone."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from equipoise.brokers.balancing.settings.setting_values import SETTINGS
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.spark_jobs.tables.schema import SCHEMAS
from tests import transcripts
from tests.docs.metrics_page import documented
from tests.docs.openapi import document
from tests.docs.public_api import calls
from tests.house.house_rules import LINKED, ROOT
from tests.unit.cli.command_lines import tree
from tests.unit.cli.test_transcripts import Session

STABLE: Final = Path(__file__).with_name("stable.json")
# Their form may change, or they are for brokers only.
UNSTABLE: Final = ("/page/", "/v1/assurance", "/v1/handover", "/v1/opened", "/v1/overview")


def reference(name: str) -> str:
    """Return a page of the reference."""
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


def commands() -> Iterator[str]:
    """Yield the options of each command."""
    for name, command in tree():
        for parameter in command.params:
            yield from (f"{name} {option}" for option in parameter.opts)


def http() -> Iterator[str]:
    """Yield each path with its method."""
    paths: Mapping[str, Any] = document()["paths"]
    for path, methods in paths.items():
        if not path.startswith(UNSTABLE):
            yield from (f"{method.upper()} {path}" for method in methods if method != "parameters")


def logged() -> Iterator[tuple[str, list[str]]]:
    """Yield the events of the page about log lines, each with its fields."""
    rows = re.findall(
        r"^\| (`.+?) \| (?:debug|info|warning|error).*? \| (.*?) \|",
        reference("log-lines.md"),
        flags=re.MULTILINE,
    )
    for names, fields in rows:
        # What is in brackets explains a field.
        named = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", fields))
        yield from ((event, named) for event in re.findall(r"`([^`]+)`", names))


def events() -> Iterator[str]:
    """Yield each event of a log line, alone and with each of its fields."""
    for event, fields in logged():
        yield event
        yield from (f"{event}, {field}" for field in fields)


def metrics() -> Iterator[str]:
    """Yield the metrics of the page about them, each with its labels. Other tests compare that page
    with what brokers and jobs measure.
    """
    for name, labels in documented().items():
        yield name
        yield from (f"{name} {label}" for label in labels)


def names() -> Iterator[str]:
    """Yield the public names, each with its parameters. The page about the API says which classes
    programs do not make.
    """
    not_made = re.findall(
        r"^::: \S+\.(\w+)\n    options:\n      merge_init_into_class: false$",
        reference("python.md"),
        flags=re.MULTILINE,
    )
    for call in calls():
        yield call.name
        if call.name not in not_made:
            parameters = inspect.signature(call.called).parameters
            yield from (f"{call.name} {name}" for name in parameters if name not in ("self", "cls"))


def tables() -> Iterator[str]:
    """Yield the columns of each table, with their types."""
    for schema in SCHEMAS.values():
        yield from (f"{schema.table}.{column.name} {column.type}" for column in schema.columns)


def fields_of(value: object, place: str = "") -> Iterator[str]:
    """Yield the path of each field of a JSON value. A key that is no name stands for any."""
    if isinstance(value, dict):
        for key, below in value.items():
            path = f"{place}.{key}" if re.fullmatch(r"[A-Za-z]\w*", key) else f"{place}.*"
            yield path
            yield from fields_of(below, path)
    elif isinstance(value, list):
        for each in value:
            yield from fields_of(each, f"{place}[]")


def json_fields() -> Iterator[str]:
    """Yield the fields that each command of the transcripts prints with `--json`."""
    known = sorted((name for name, _ in tree()), key=len, reverse=True)
    for path in transcripts.paths(ROOT / "tests" / "unit" / "cli" / "transcripts"):
        with TemporaryDirectory() as folder:
            session = Session(Path(folder))
            for question in transcripts.questions(path):
                plain = re.sub(r"^\([a-z ]+\) ", "", question)
                command = next((each for each in known if plain.startswith(each)), None)
                as_json = command and not re.search(r"--(json|help|print-config)", question)
                answer = session.answer(f"{question} --json" if as_json else question)
                for line in re.findall(r"^[{\[].*", answer, re.MULTILINE) if command else ():
                    printed = fields_of(json.loads(line.replace("MILLISECONDS", "0")))
                    yield from (f"{command} {field}" for field in printed)


KINDS: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "commands": commands,
    "events": events,
    "http": http,
    "json": json_fields,
    "metrics": metrics,
    "names": names,
    "settings": lambda: iter((*WorkerConfig.model_fields, *SETTINGS)),
    "tables": tables,
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow if kind == "json" else ()) for kind in KINDS],
)
def test_nothing_stable_is_gone(kind: str) -> None:
    found = sorted({*KINDS[kind]()})
    stable = json.loads(STABLE.read_text(encoding="utf-8"))
    if os.environ.get("EQUIPOISE_TEST_REWRITE"):
        stable = {**stable, kind: found}
        text = json.dumps(stable, indent=0, sort_keys=True, ensure_ascii=False)
        STABLE.write_text(text + "\n", encoding="utf-8")
    assert [] == sorted({*stable[kind]} - {*found})


def test_the_page_about_log_lines_names_what_the_code_logs() -> None:
    """Each event is a text of the code, or begins one, and each field a word of it."""
    texts, words = set[str](), set[str]()
    for path in (path for folder in LINKED for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.keyword | ast.arg | ast.AnnAssign):
                words.add(ast.unparse(node).partition("=")[0].partition(":")[0])
    gone = []
    for event, fields in logged():
        gone += [] if any(text.startswith(event.rstrip(". ")) for text in texts) else [event]
        gone += [f"{event}, {field}" for field in fields if field not in texts | words]
    assert gone == []
