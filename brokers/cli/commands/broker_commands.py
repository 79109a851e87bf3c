"""Define `equipoise brokers`: list members, show the leader, drain a broker or declare it dead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.controls import maintenance_documents, maintenances_in
from equipoise.brokers.cli.channel_options import Admin, Channel, Timed
from equipoise.brokers.cli.moments import end_ms
from equipoise.brokers.cli.options import (
    LOG_VARIABLE,
    ForOption,
    ReasonOption,
    WaitOption,
    directory,
)
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Row
from equipoise.brokers.cli.rows import (
    BROKER_COLUMNS,
    MAINTENANCE_COLUMNS,
    broker_row,
    control_rows,
    load_row,
)
from equipoise.brokers.errors import BrokerUnreachable, counted
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.operations import verbs
from equipoise.brokers.operations.asking import ask_at
from equipoise.brokers.operations.checks import known_broker
from equipoise.brokers.operations.on_channel import declare_dead as declare_dead_by_directory
from equipoise.brokers.operations.on_channel import run
from equipoise.brokers.runtime.service import http_address, own_http
from equipoise.brokers.security.own_token import TOKEN_VARIABLE
from equipoise.channel.system.clocks import Deadline

app = group("List brokers and their status; drain a broker; declare a dead one dead.")
maintenance = group("Take brokers out for maintenance, and bring them back.")
app.add_typer(maintenance, name="maintenance")

SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of a broker, or with --domain a failure domain.", show_default=False
    ),
]
DomainOption = Annotated[
    bool,
    typer.Option("--domain", help="ID names a failure domain: all its brokers, also later ones."),
]

_STATUS_COLUMNS: Final = ("broker", "status", "channel_lost_since", "serving_on", "problems")
_UNREACHABLE: Final = "unreachable"
_WELL: Final = frozenset({"ready", "serving on"})


@app.command("list")
def list_brokers(
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER",
            help="Fail if the log belongs to another cluster.",
            show_default=False,
        ),
    ] = None,
    *,
    channel: Channel,
    everyone: Annotated[
        bool, typer.Option("--all", help="Include brokers that have left or are down.")
    ] = False,
) -> None:
    """List the live brokers.

    The list comes from the channel: a broker that has just died is listed until its lease ends.
    """
    with channel.reading(cluster=cluster) as access:
        brokers = [access.view.brokers[name] for name in sorted(access.view.brokers)]
        maintenances = maintenances_in(access.view)
        rows = [
            broker_row(access.view, broker, maintenances)
            for broker in brokers
            if everyone or broker.live
        ]
    differ = any(row["namespaces"] != ["*"] for row in rows)
    channel.print_rows(
        rows,
        columns=(*BROKER_COLUMNS, *(("namespaces",) if differ else ())),
        sometimes=("maintenance",),
        nothing="no broker is alive",
    )


@app.command()
def show(
    broker: Annotated[str, typer.Argument(metavar="ID", show_default=False)], *, channel: Channel
) -> None:
    """Show one broker, and what its load reports say.

    The CPU time of a call, a byte, a session and a bundle is fitted to the CPU use of all brokers.
    `known_costs` names those that this use distinguishes; the others are near what is assumed.
    """
    with channel.reading() as access:
        entry = known_broker(access.view, broker)
        document = broker_row(access.view, entry, maintenances_in(access.view))
        loads = LoadBus(channel.log).latest()
    channel.print_document({**document, **load_row(broker, loads)})


@app.command("leader-broker")
def leader_broker(*, channel: Channel) -> None:
    """Show the leader.

    The leader is the oldest live broker that does not drain. Exit code 3: no broker is alive.
    """
    with channel.reading() as access:
        leader = access.view.leader()
    if leader is None:
        channel.print_fact(
            "no broker is alive, so none leads", {"brokerId": None, "serviceUrl": None}
        )
        raise typer.Exit(ExitCode.UNAVAILABLE)
    address = http_address(leader.joined.addresses)
    sentence = (
        f"{leader.broker} at {address or 'no HTTP address'}, the oldest, since offset"
        f" {leader.incarnation}"
    )
    # Pulsar's field names.
    channel.print_fact(sentence, {"brokerId": leader.broker, "serviceUrl": address})


@app.command()
def status(
    *,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            envvar=LOG_VARIABLE,
            help="Ask the brokers of this log.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Ask the broker at this HTTP address; works while the log is away. Repeatable.",
            show_default=False,
        ),
    ] = None,
    options: Timed,
) -> None:
    """Show the status of brokers.

    Asks each broker over HTTP whether it is ready, since when it has lost the channel, and which
    namespaces it still serves. While the log is unavailable, name the brokers with --url. Exit code
    3: a broker is not ready, or does not answer.
    """
    if not url and log is None:
        raise typer.BadParameter(
            f"name the brokers with --url, or their log with --log or {LOG_VARIABLE}"
        )
    deadline = options.deadline()
    brokers = [(address, address.rstrip("/")) for address in url or ()]
    if not brokers and log is not None:
        with Channel(log=log, timeout=options.timeout).reading() as access:
            live = sorted(access.view.live_brokers(), key=lambda broker: broker.broker)
        brokers = [(broker.broker, own_http(broker.joined.addresses) or "") for broker in live]
    rows = run(_statuses(brokers, deadline))
    options.print_rows(
        rows, columns=_STATUS_COLUMNS, sometimes=("maintenance",), nothing="no broker is alive"
    )
    if not all(map(_is_well, rows)):
        raise typer.Exit(ExitCode.UNAVAILABLE)


@app.command()
def drain(
    broker: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    *,
    channel: Channel,
    wait: WaitOption = True,
) -> None:
    """Move all bundles of a broker away.

    The broker takes no new bundles from then on. Its process continues to run; stop it, or undrain
    it to take bundles again.
    """
    channel.carry_out(verbs.drain, broker, wait=wait)


@app.command()
def undrain(
    broker: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    *,
    channel: Channel,
    wait: WaitOption = True,
) -> None:
    """Let a drained broker take bundles again, without a restart.

    It gives its last bundles away first, and joins again as a new incarnation.
    """
    channel.carry_out(verbs.undrain, broker, wait=wait)


@maintenance.command("start")
def start_maintenance(
    subject: SubjectArgument,
    *,
    admin: Admin,
    reason: ReasonOption,
    duration_ms: ForOption = None,
    of_domain: DomainOption = False,
    wait: WaitOption = True,
) -> None:
    """Have a broker take no bundles, and move its bundles away.

    This lasts until its end, also over restarts of the broker. Works while balancing is off. Start
    it again to change reason or end.
    """
    admin.carry_out(
        verbs.start_maintenance,
        subject,
        reason=reason,
        until_ms=end_ms(duration_ms),
        of_domain=of_domain,
        wait=wait,
    )


@maintenance.command("end")
def end_maintenance(
    subject: SubjectArgument, *, admin: Admin, of_domain: DomainOption = False
) -> None:
    """Let a broker take bundles again. The balancer then moves a share to it."""
    admin.carry_out(verbs.end_maintenance, subject, of_domain=of_domain)


@maintenance.command("list")
def list_maintenance(*, channel: Channel) -> None:
    """List what is in maintenance, why and until when, and how many bundles its brokers still
    have.
    """
    with channel.reading() as access:
        rows = control_rows(maintenance_documents(access.view))
    channel.print_rows(rows, columns=MAINTENANCE_COLUMNS, nothing="nothing is in maintenance")


@app.command()
def declare_dead(
    *,
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DIR", parser=directory, help="Data directory of the dead broker."
        ),
    ],
    admin: Admin,
) -> None:
    """Declare a dead broker dead at once.

    Its bundles then move without waiting for its lease. The lock of its data directory proves that
    the process has ended; if it still runs, the command fails and prints the process id. Meant for
    a service manager's stop hook: after a graceful stop it does nothing and succeeds.
    """
    with admin.acting() as access:
        death_declarations = declare_dead_by_directory(access, data)
    lines = [
        f"accepted at offset {dead.offset}: {dead.broker}#{dead.incarnation} is down, it held"
        f" {counted(dead.bundles, 'bundle')}"
        for dead in death_declarations
    ]
    nobody = f"no broker to declare dead: no live broker has an instance id of {data}"
    admin.print_lines([asdict(dead) for dead in death_declarations], lines or [nobody])


async def _statuses(brokers: Sequence[tuple[str, str]], deadline: Deadline) -> list[Row]:
    """Return the status of each of `brokers` (id and HTTP address). A silent broker costs only its
    share of the time.
    """
    rows = []
    for place, (broker, address) in enumerate(brokers):
        share_ms = -(-deadline.remaining_ms() // (len(brokers) - place))
        rows.append(await _status(broker, address, Deadline.after(timeout_ms=share_ms)))
    return rows


def _is_well(row: Row) -> bool:
    """Return whether clients may connect to that broker."""
    return row["status"] in _WELL


async def _status(broker: str, address: str, deadline: Deadline) -> Row:
    try:
        answer = await ask_at(broker, address, "GET", "/ready", deadline=deadline)
        document = json.loads(answer.text)
        # To callers without valid credentials.
        if document in ({"status": "ready"}, {"status": "not ready"}):
            problem = f"it says more only with valid credentials; set {TOKEN_VARIABLE}"
            return _status_row(broker, address, document["status"], None, [problem])
        row = _status_row(
            str(document["broker"]),
            address,
            str(document["status"]),
            document["channel_loss"],
            document["problems"],
        )
        return {**row, "maintenance": document.get("maintenance")}
    except BrokerUnreachable as error:
        return _status_row(broker, address, _UNREACHABLE, None, [error.problem])
    except (ValueError, KeyError, TypeError):
        return _status_row(
            broker, address, _UNREACHABLE, None, ["no broker of this version answers there"]
        )


def _status_row(broker: str, address: str, status: str, loss: Row | None, problems: object) -> Row:
    return {
        "broker": broker,
        "address": address,
        "status": status,
        "channel_lost_since": None if loss is None else loss["since"],
        "serving_on": [] if loss is None else loss["serving_on"],
        "problems": problems,
        "maintenance": None,
    }
