"""Define the options that say which Pulsar cluster a command is about and who asks, once for all
commands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.options import TIMEOUT_S, TimeoutOption
from equipoise.channel.system.deadline import Deadline
from equipoise.pulsar_cluster.credentials import NOBODY, ClientConf, read_client_conf, with_files
from equipoise.pulsar_cluster.reading import OPERATION_S, Address, is_url

_VARIABLE: Final = "EQUIPOISE_PULSAR"


class Cluster:
    """Where a cluster or its archive is, and the time that a command has."""

    def __init__(
        self,
        *,
        source: str | None,
        admin: list[str] | None,
        client_conf: Path | None,
        token_file: Path | None,
        ca_file: Path | None,
        timeout: int,
    ) -> None:
        """Take what the options say."""
        self.timeout_s = timeout
        conf = (
            ClientConf(None, None, NOBODY) if client_conf is None else read_client_conf(client_conf)
        )
        source = source or conf.service_url
        if source is None:
            raise typer.BadParameter(
                "name the cluster with --source (or EQUIPOISE_PULSAR), or as brokerServiceUrl in"
                " --client-conf"
            )
        self.address = Address(
            service_url=source,
            admin_urls=tuple(admin or ()),
            credentials=with_files(conf.credentials, token_file, ca_file),
            timeout_s=min(timeout, OPERATION_S),
        )

        self._admin_of_conf = conf.admin_url

    @property
    def address_with_admin(self) -> Address:
        """The same, with the admin API of `client.conf` if none was named: for commands that cannot
        do without it.

        Others do not ask it unasked: its role may read the topic alone. An archive needs none.
        """
        if (
            self.address.admin_urls
            or self._admin_of_conf is None
            or not is_url(self.address.service_url)
        ):
            return self.address
        return replace(self.address, admin_urls=(self._admin_of_conf,))

    def deadline(self) -> Deadline:
        """Return the end of the command's time, from now."""
        return Deadline.after(timeout_ms=self.timeout_s * 1_000)


def _options(
    *,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            envvar=_VARIABLE,
            help="The cluster's service URL (pulsar://HOST:PORT), or an archive.",
            show_default=False,
        ),
    ] = None,
    admin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="The cluster's admin API: http://HOST:PORT. Repeatable.",
            show_default=False,
        ),
    ] = None,
    client_conf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="PULSAR_CLIENT_CONF",
            exists=True,
            dir_okay=False,
            help="Pulsar's client.conf: addresses, TLS, and who asks. Other options override it.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A file with a token.",
            show_default=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A PEM file with trusted authorities.",
            show_default=False,
        ),
    ] = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> Cluster:
    return Cluster(
        source=source,
        admin=admin,
        client_conf=client_conf,
        token_file=token_file,
        ca_file=ca_file,
        timeout=timeout,
    )


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `_options` in place of its parameter `cluster`."""
    own, shared = (
        inspect.signature(command, eval_str=True),
        inspect.signature(_options, eval_str=True),
    )

    @functools.wraps(command)
    def run(**given: object) -> None:
        cluster = _options(**{name: given.pop(name) for name in shared.parameters})  # type: ignore[arg-type]
        command(**given, cluster=cluster)

    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        parameters += shared.parameters.values() if parameter.name == "cluster" else [parameter]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
