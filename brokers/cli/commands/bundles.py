"""Define `equipoise bundles`: list bundles, show who serves a key, and cancel moves."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.brokers.balancing.controls import quarantine_documents, why_frozen
from equipoise.brokers.balancing.quarantine import why_quarantined
from equipoise.brokers.cli.channel_options import Admin, Channel
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Row
from equipoise.brokers.cli.rows import BUNDLE_COLUMNS, QUARANTINE_COLUMNS, bundle_row, control_rows
from equipoise.brokers.operations import moves, verbs
from equipoise.brokers.runtime.service import http_address
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import key_hash
from equipoise.channel.core.view import View

app = group("Show bundles and their owners; cancel moves.")
quarantine = group("List and release bundles that broke their owners.")
app.add_typer(quarantine, name="quarantine")

BundleArgument = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE", help="TENANT/NAMESPACE/0x00000000_0x40000000", show_default=False
    ),
]


@app.command("list")
def list_bundles(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="TENANT/NAMESPACE", help="List only this namespace.", show_default=False
        ),
    ] = None,
    *,
    channel: Channel,
) -> None:
    """List bundles in order of the hash space."""
    with channel.reading() as access:
        names = (
            sorted(access.view.namespaces) if namespace is None else [access.namespace(namespace)]
        )
        rows = [
            _row(access.view, bundle) for name in names for bundle in access.view.bundles_of(name)
        ]
    channel.print_rows(
        rows,
        columns=BUNDLE_COLUMNS,
        sometimes=("frozen", "quarantine", "unserved"),
        nothing="there is no bundle",
    )


@app.command()
def show(bundle: BundleArgument, *, channel: Channel) -> None:
    """Show the state of one bundle.

    `equipoise channel why` shows its history.
    """
    with channel.reading() as access:
        document = _row(access.view, access.bundle(bundle))
    channel.print_document(document)


def _row(view: View, bundle: BundleEntry) -> Row:
    return {**bundle_row(view, bundle), "frozen": why_frozen(view, bundle.namespace)}


@app.command()
def owner(
    namespace: Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", show_default=False)],
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A key of the service, or the full name of a topic.",
            show_default=False,
        ),
    ],
    *,
    channel: Channel,
) -> None:
    """Show which broker serves a key.

    The answer comes from the channel, so it may name a broker that has just died. Exit code 3: no
    broker serves it now.
    """
    point = key_hash(key)
    with channel.reading() as access:
        bundle = access.view.bundle_at(access.namespace(namespace), point)
        assert bundle is not None, "the bundles of a namespace cover every point"
        server = None if bundle.server is None else access.view.live[bundle.server]
    document = {
        "key": key,
        "point": f"0x{point:08x}",
        "bundle": bundle.name,
        "state": bundle.state,
        "token": bundle.token,
        "broker": None if server is None else server.broker,
        "addresses": {} if server is None else dict(server.joined.addresses),
    }
    if server is None:
        why = why_quarantined(access.view, bundle.name)
        state = bundle.state if why is None else f"in quarantine: {why}"
        sentence = f"no broker serves it now: its bundle {bundle.name} is {state}"
    else:
        sentence = (
            f"{server.broker} at {http_address(server.joined.addresses) or 'no HTTP address'}, in"
            f" {bundle.name} with token {bundle.token}"
        )
    channel.print_fact(sentence, document)
    if server is None:
        raise typer.Exit(ExitCode.UNAVAILABLE)


@app.command()
def cancel(bundle: BundleArgument, *, admin: Admin) -> None:
    """Cancel a transfer or a split that is not complete.

    The owner keeps the bundle, under the same fencing token. Refused if its owner is already
    releasing it. Not in Pulsar.
    """
    admin.carry_out(moves.cancel, bundle)


@quarantine.command("list")
def list_quarantine(*, channel: Channel) -> None:
    """List the bundles that nobody may serve, why, and the offsets of the records that show it."""
    with channel.reading() as access:
        rows = control_rows(quarantine_documents(access.view))
    channel.print_rows(rows, columns=QUARANTINE_COLUMNS, nothing="no bundle is in quarantine")


@quarantine.command()
def release(bundle: BundleArgument, *, admin: Admin) -> None:
    """Let brokers serve a bundle again. The leader assigns it at once, and its counts start at
    0.
    """
    admin.carry_out(verbs.release_bundle, bundle)
