"""Run every command of pulsar-admin against a cluster with clients, and keep what each prints.

The script is in `admin_commands`, a file for each group of commands. `verdicts` is written by hand,
and so is `run` of each line. What follows it is what the tool did; `python -m
tests.pulsar.admin_script` writes it anew.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

import orjson
import yaml

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from tests.load import admin_requests
from tests.load.admin_requests import Move
from tests.load.cluster import READY_MS, running, settle
from tests.pulsar.admin_tool import AdminTool, Command, admin_tool
from tests.pulsar.clients import Client, Consuming, Event, Producing
from tests.pulsar.programs import Language, admin_command

FOLDER: Final = Path(__file__).resolve().parent / "admin_commands"

GROUPS: Final = (
    *(
        "broker-stats",
        "tenants",
        "properties",
        "ns-isolation-policy",
        "namespaces",
        "topics",
        "persistent",
        "non-persistent",
        "schemas",
    ),
    *("brokers", "clusters"),
)
"""The groups of the script, in the order in which it runs them. The tool hides `properties`,
`persistent` and `non-persistent`.

The last commands shut a broker down, and delete everything.
"""

WORKS: Final = "works"
DIFFERS: Final = "differs"
NOT_HERE: Final = "not here"

_NAMESPACE: Final = "acme/orders"
_LIVE: Final = f"non-persistent://{_NAMESPACE}/live"
_CLIENT_S: Final = 60.0

_WIDTH: Final = 10_000  # One line for each text.
_HELP: Final = frozenset({"--help", "--version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line, and what the tool did: its exit code, the status of the answer that it failed
    for (0: none), its output.
    """

    run: str
    code: int = 0
    status: int = 0
    prints: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The script of a group: for each command `works`, `differs: how` or `not here`, and the
    lines.
    """

    name: str
    verdicts: Mapping[str, str]
    lines: Sequence[Line]

    def lines_of(self, command: str) -> Sequence[Line]:
        """Return the lines that run a command."""
        return [line for line in self.lines if command_in(line.run) == command]


def command_in(run: str) -> str:
    """Return the command of a command line: the group and the word after it."""
    words = run.split()
    start = next(index for index, word in enumerate(words) if word in GROUPS)
    return " ".join(words[start : start + 2])


# --- the files ---


def read_groups() -> Sequence[Group]:
    """Return the script."""
    groups = []
    for name in GROUPS:
        content = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
        groups.append(
            Group(
                name=name,
                verdicts=content["verdicts"],
                lines=[Line(**line) for line in content["lines"]],
            )
        )
    return groups


class _Dumper(yaml.CSafeDumper):
    """YAML with texts of several lines as blocks."""


def _block(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _block)


def write_group(group: Group) -> None:
    """Write the file of a group."""
    lines = [
        {name: value for name, value in asdict(line).items() if value or name in {"run", "code"}}
        for line in group.lines
    ]
    content = {"verdicts": dict(group.verdicts), "lines": lines}
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    (FOLDER / f"{group.name}.yaml").write_text(text, encoding="utf-8")


# --- the rules ---


def problems(groups: Iterable[Group]) -> Iterator[str]:
    """Yield where what the tool did contradicts the verdict, or is no answer that a user may
    get.
    """
    for group in groups:
        for line in group.lines:
            if is_poor(line):
                yield f"{line.run}: ends with {line.status or line.code}: {line.prints[:200]}"
            if command_in(line.run) not in group.verdicts:
                yield f"{line.run}: the command has no verdict"
        for command, verdict in group.verdicts.items():
            yield from _contradictions(command, verdict, group.lines_of(command))


def is_poor(line: Line) -> bool:
    """Return whether an answer has no clear sentence: an unknown path, a wrong method, an error of
    the broker, a trace of Java.
    """
    return command_in(line.run) not in _REASONLESS and (
        line.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        or "there is no path" in line.prints
        or "does not support" in line.prints
        or "\tat " in line.prints
        or (line.code != 0 and not line.prints)
    )


_REASONLESS: Final = frozenset({"topics terminate", "persistent terminate"})
"""Commands of which the tool prints `null` in place of any reason: it reads the cause of an error
that has none."""


def _contradictions(command: str, verdict: str, lines: Sequence[Line]) -> Iterator[str]:
    kind, _, how = verdict.partition(": ")
    succeeded = [line for line in lines if line.code == 0]
    if kind not in {WORKS, DIFFERS, NOT_HERE} or bool(how) != (
        kind == DIFFERS or command in _REASONLESS
    ):
        yield f"{command}: {verdict!r} is no verdict"
    if not lines:
        yield f"{command}: no line runs it"
    elif kind == NOT_HERE and succeeded:
        yield f"{command}: it is {verdict!r}, but works: {succeeded[0].run}"
    elif kind != NOT_HERE and not succeeded:
        yield f"{command}: it is {verdict!r}, but never works: {lines[0].prints[:200]}"


def left_out(groups: Iterable[Group], commands: Iterable[Command]) -> Iterator[str]:
    """Yield the commands and options of the tool that the script leaves out, and the commands that
    the tool does not have.
    """
    scripts = {group.name: group for group in groups}
    known = set()
    for command in commands:
        of = command.name.split()[0]
        if of not in scripts:
            continue
        known.add(command.name)
        if command.name not in scripts[of].verdicts:
            yield f"{command.name}: the script leaves it out"
        words = {word for line in scripts[of].lines_of(command.name) for word in line.run.split()}
        for names in command.options:
            if not words & set(names) and not _HELP & set(names):
                yield f"{command.name}: no line has its option {names[0]}"
    for group in scripts.values():
        yield from (
            f"{name}: the tool has no such command" for name in group.verdicts if name not in known
        )


# --- running it ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A cluster with clients, and the tool.

    `names` are words of the script with what they stand for. `masks` are patterns of what differs
    from run to run, with names for it.
    """

    tool: AdminTool
    names: Mapping[str, str]
    masks: Mapping[str, str]

    async def run(self, line: Line) -> Line:
        """Run a line."""
        answer = await self.tool.run([_replaced(word, self.names) for word in line.run.split()])
        # The tool prints a reason twice.
        prints = re.sub(r"\n\nReason: .*", "", answer.out + answer.err, flags=re.DOTALL).strip()
        prints = _shape_of(prints) if command_in(line.run) in _FIGURES else prints
        for pattern, name in self.masks.items():
            prints = re.sub(pattern, name, prints)
        return replace(
            line,
            code=answer.code,
            status=answer.status,
            prints=re.sub(r" +$", "", prints, flags=re.MULTILINE),
        )


_MASKS: Final = {
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r"\b\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)?": "TIME",
    r"\boffset \d+": "offset N",
    r"(acme/\S+    \[broker_assignment.*\n?)+": "",  # Which bundles a broker has, or none.
    # Which broker has which partitions.
    r"(pulsar://PULSAR    \[[^\]]*\]\n?)+": "pulsar://PULSAR    [...]\n",
    r"(?m)^\d+\.\d+\.\d+(rc\d+)?$": "VERSION",
    r"\b\d+\.\d+\b": "N.N",
    r"\b\d{10,}\b": "N",
}

_FIGURES: Final = frozenset(
    {
        "brokers get-runtime-config",
        "broker-stats monitoring-metrics",
        "broker-stats mbeans",
        "broker-stats topics",
        "broker-stats destinations",
        "broker-stats load-report",
    }
)
"""Commands that print figures: the script keeps their names only."""


def _shape_of(text: str) -> str:
    """Return the names in a JSON document, of Pulsar's counters in a list of metrics, or of
    settings with values.
    """
    text = re.sub(r"\b0x[0-9a-f]{8}_0x[0-9a-f]{8}\b", "BUNDLE", text)
    try:
        # The last sample may not be there yet.
        names = {name for name in _paths(orjson.loads(text)) if not name.startswith("lastStats")}
    except orjson.JSONDecodeError:
        names = set(re.findall(r'"((?:brk|pulsar)_\w+_total|metrics|dimensions)" *:', text))
        names = names or {line.partition("    ")[0] for line in text.splitlines()}
    return "\n".join(sorted(names))


def _paths(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _paths(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for each in value:
            yield from _paths(each, f"{path}[]")
    else:
        yield f"{path}: {type(value).__name__}"


def _replaced(word: str, names: Mapping[str, str]) -> str:
    return re.sub(r"[A-Z][A-Z0-9_-]+", lambda found: names.get(found[0], found[0]), word)


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Run three brokers, a producer and a consumer of a topic, and the tool."""
    settings = ClusterSettings(
        directory=folder / "cluster",
        services=("pulsar",),
        pulsar_port=0,
        settings={"balance": "false"},
        ready_ms=READY_MS,
    )
    cluster = LocalCluster(settings)
    pulsar = cluster.pulsar_url.removeprefix("pulsar://").split(",")
    brokers = sorted(cluster.broker_ids)  # As they are in lists.
    async with running(cluster, _NAMESPACE, bundles=4) as (table, http):
        # At the broker that the tool asks, which prints what it has itself.
        move = Move(
            kind=MoveKind.TRANSFER, bundle=f"{_NAMESPACE}/0x00000000_0x40000000", to=brokers[0]
        )
        await admin_requests.make(http, f"http://{brokers[0]}", move)
        await settle(cluster, table, _NAMESPACE)
        names = {
            **{f"BROKER-{number}": broker for number, broker in enumerate(brokers, 1)},
            **{f"PULSAR-{number}": address for number, address in enumerate(pulsar, 1)},
            **_files(folder),
        }
        masks = {
            **{rf"{re.escape(broker)}\b": "BROKER" for broker in brokers},
            **{rf"{re.escape(address)}\b": "PULSAR" for address in pulsar},
            re.escape(str(folder)): "FOLDER",
            **_MASKS,
        }
        async with _clients(folder, cluster.pulsar_url), admin_tool(f"http://{brokers[0]}") as tool:
            yield Stage(tool=tool, names=names, masks=masks)


@asynccontextmanager
async def _clients(folder: Path, url: str) -> AsyncIterator[None]:
    """Run a consumer and a producer. They exchange one message, so that counters stay the same."""
    consuming = Consuming(url=url, name="c0", subscription="s", topics=(_LIVE,))
    producing = Producing(url=url, name="p0", topics=(_LIVE,), rate=0.001)
    clients = [Client(Language.PYTHON, task, folder) for task in (consuming, producing)]
    try:
        for client in clients:
            client.start()
            await asyncio.to_thread(client.wait_ready)
        await asyncio.to_thread(clients[0].wait_count, Event.RECEIVED, 1, timeout_s=_CLIENT_S)
        yield
    finally:
        for client in clients:
            client.kill()


def _files(folder: Path) -> Mapping[str, str]:
    """Write the files that commands read. Return their paths by name."""
    contents = {
        "CLUSTER_FILE": "serviceUrl: http://west.example:8080\n",
        "TOPICS_FILE": f"non-persistent://{_NAMESPACE}/in-a-file\n",
        "SCHEMA_FILE": orjson.dumps({"type": "STRING", "schema": "", "properties": {}}).decode(),
    }
    for name, content in contents.items():
        (folder / name.lower()).write_text(content, encoding="utf-8")
    jar = next(
        path
        for path in " ".join(admin_command()).replace(":", " ").split()
        if "/pulsar-client-admin-api-" in path
    )
    return {**{name: str(folder / name.lower()) for name in contents}, "JAR_FILE": jar}


async def run_script(on: Stage, groups: Sequence[Group]) -> Sequence[Group]:
    """Run the script. Return it with what the tool did."""
    return [replace(group, lines=[await on.run(line) for line in group.lines]) for group in groups]


async def main() -> None:
    """Write anew what the tool does."""
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder)) as on:
            for group in await run_script(on, read_groups()):
                write_group(group)


if __name__ == "__main__":
    asyncio.run(main())
