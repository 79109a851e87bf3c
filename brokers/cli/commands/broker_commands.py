"""Define `equipoise brokers`: list members, show the leader, drain a broker or declare it dead."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.asking import ask
from equipoise.brokers.cli.commands.status import STATUS_COLUMNS, is_well, statuses
from equipoise.brokers.cli.options import (
    LOG_VARIABLE,
    TIMEOUT_S,
    AsOption,
    JsonOption,
    LogOption,
    TimeoutOption,
    WaitOption,
    directory,
    reading,
    writing,
)
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import counted, print_fact, print_json, print_line, print_rows
from equipoise.brokers.cli.rows import BROKER_COLUMNS, broker_row
from equipoise.brokers.errors import BrokerUnreachable, Rejected
from equipoise.brokers.operations.access import Access, until
from equipoise.brokers.operations.death_declaration import declare_dead as declare_dead_by_directory
from equipoise.brokers.runtime.service import own_http
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

app = group("See who is a member; drain a broker, declare a dead one dead.")

_DRAIN_PATH: Final = "/admin/v2/brokers/drain"
_ACCEPTED: Final = frozenset({200, 202, 204})
_SHOWN_CHARACTERS_MAX: Final = 4_096
"""The most characters of an answer that are printed, in one line."""


@app.command("list")
def list_brokers(
    cluster: Annotated[
        str | None, typer.Argument(metavar="CLUSTER", help="Refuse the log of another cluster than this.", show_default=False)
    ] = None,
    *,
    log: LogOption,
    everyone: Annotated[bool, typer.Option("--all", help="Those too that have left or are down.")] = False,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """List the brokers that are alive.

    That is what the channel says; one that has just died is listed until its lease has run out.
    """
    with reading(log, timeout, cluster=cluster) as access:
        brokers = [access.view.brokers[name] for name in sorted(access.view.brokers)]
        rows = [broker_row(access.view, broker) for broker in brokers if everyone or broker.live]
    print_rows(rows, columns=BROKER_COLUMNS, as_json=as_json, nothing="no broker is alive")


@app.command("leader-broker")
def leader_broker(*, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False) -> None:
    """Say which broker leads.

    It is the oldest live one that does not drain. Exit code 3: none, since none is alive.
    """
    with reading(log, timeout) as access:
        leader = access.view.leader()
    if leader is None:
        print_fact("no broker is alive, so none leads", {"brokerId": None, "serviceUrl": None}, as_json=as_json)
        raise typer.Exit(ExitCode.UNAVAILABLE)
    address = leader.joined.addresses.get("http")
    sentence = f"{leader.broker} at {address or 'no HTTP address'}, the oldest, since offset {leader.incarnation}"
    print_fact(sentence, {"brokerId": leader.broker, "serviceUrl": address}, as_json=as_json)  # Pulsar's field names.


@app.command()
def status(
    *,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="URL", envvar=LOG_VARIABLE, help="The log that says which brokers there are.", show_default=False),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Ask the broker at this HTTP address, without the log; may be repeated.", show_default=False),
    ] = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Ask the brokers how they are.

    Each is asked over HTTP: whether it is ready, since when it has lost the channel, and which namespaces it serves on all the
    same. While the log is away only --url finds them. Exit code 3: one of them is not ready, or does not answer.
    """
    if not url and log is None:
        raise typer.BadParameter(f"say where the brokers are found: --url, or --log (or {LOG_VARIABLE})")
    deadline = Deadline.after(timeout_ms=timeout * 1_000)
    brokers = [(address, address.rstrip("/")) for address in url or ()]
    if not brokers and log is not None:
        with reading(log, timeout) as access:
            live = sorted(access.view.live_brokers(), key=lambda broker: broker.broker)
        brokers = [(broker.broker, own_http(broker.joined.addresses) or "") for broker in live]
    rows = statuses(brokers, deadline)
    print_rows(rows, columns=STATUS_COLUMNS, as_json=as_json, nothing="no broker is alive")
    if not all(map(is_well, rows)):
        raise typer.Exit(ExitCode.UNAVAILABLE)


@app.command()
def drain(
    broker: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    *,
    log: LogOption,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Have a broker move all its bundles away.

    It is asked over HTTP, and writes itself that it is draining: it takes nothing new from then on. Its process goes on.
    """
    with reading(log, timeout) as access:
        entry = _alive(access, broker)
        incarnation, bundles = entry.incarnation, access.view.held_count(entry.incarnation)
        _ask_to_drain(entry, access.deadline)
        if wait:
            until(access, lambda view, _: _is_empty(view, incarnation), what=f"the draining of {broker}")
    sentence = f"{broker} {'is drained' if wait else 'drains'}: it had {counted(bundles, 'bundle')}"
    print_fact(sentence, {"broker": broker, "incarnation": incarnation, "bundles": bundles, "done": wait}, as_json=as_json)


@app.command()
def declare_dead(
    *,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", parser=directory, help="The data directory of the broker whose process is gone.")
    ],
    log: LogOption,
    admin: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Declare a dead broker dead at once.

    Nobody then waits for its lease. The lock of its data directory proves that its process is gone; while that runs, it is
    refused with the number of the process. For a service manager's stop hook: after a graceful stop there is nobody to
    declare dead, and that is no error.
    """
    with writing(log, admin, timeout) as access:
        death_declarations = declare_dead_by_directory(access, data)
    if as_json:
        print_json(
            [{"broker": b.broker, "incarnation": b.incarnation, "offset": b.offset, "bundles": b.bundles} for b in death_declarations]
        )
        return
    for dead in death_declarations:
        print_line(f"accepted at offset {dead.offset}: {dead.broker}#{dead.incarnation} is down, it held {counted(dead.bundles, 'bundle')}")
    if not death_declarations:
        print_line(f"nobody to declare dead: no live broker bears a nonce of {data}")


def _alive(access: Access, broker_id: str) -> BrokerEntry:
    """Return the live broker with this id. Raise `InvalidName`, `UnknownBroker` or `Rejected`."""
    broker = access.broker(broker_id)
    if not broker.live:
        raise Rejected(key=broker_id, reason=Reason.DEAD_TARGET, problem=f"it is {broker.status} since offset {broker.last}", offset=None)
    return broker


def _is_empty(view: View, incarnation: int) -> bool | None:
    """Return True if an incarnation is draining and owns nothing, or is gone; otherwise None."""
    broker = view.live.get(incarnation)
    return True if broker is None or (broker.status == "draining" and not view.held_count(incarnation)) else None


def _ask_to_drain(broker: BrokerEntry, deadline: Deadline) -> None:
    """Ask a broker to drain. Raise `BrokerUnreachable`."""
    answer = ask(broker, "POST", _DRAIN_PATH, deadline=deadline)
    if answer.status not in _ACCEPTED:
        problem = f"it answers {answer.status} {answer.text.strip()[:_SHOWN_CHARACTERS_MAX]}"
        raise BrokerUnreachable(broker=broker.broker, address=own_http(broker.joined.addresses) or "", problem=problem)
