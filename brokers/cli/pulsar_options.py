"""Define the options that say which Pulsar cluster a command is about and who asks, once for all
commands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.options import TIMEOUT_S, TimeoutOption, existing_file
from equipoise.brokers.cli.output import Output
from equipoise.channel.system.clocks import Deadline
from equipoise.pulsar_cluster.credentials import NOBODY, ClientConf, read_client_conf, with_files
from equipoise.pulsar_cluster.reading import OPERATION_S, Address, is_url

_VARIABLE: Final = "EQUIPOISE_PULSAR"


# Without slots, which the cached properties cannot have.
@dataclass(frozen=True, kw_only=True)
class Cluster(Output):
    """Where a cluster or its archive is, and the time that a command has."""

    source: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            envvar=_VARIABLE,
            help="The cluster's service URL (pulsar://HOST:PORT), or an archive.",
            show_default=False,
        ),
    ] = None
    admin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="The cluster's admin API: http://HOST:PORT. Repeatable.",
            show_default=False,
        ),
    ] = None
    client_conf: Annotated[
        Path | None,
        existing_file(
            text="Pulsar's client.conf: addresses, TLS, and who asks. Other options override it.",
            envvar="PULSAR_CLIENT_CONF",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        existing_file(text="A file with a token."),
    ] = None
    ca_file: Annotated[
        Path | None,
        existing_file(text="A PEM file with trusted authorities."),
    ] = None
    timeout_s: TimeoutOption = TIMEOUT_S

    @cached_property
    def address(self) -> Address:
        """The address that the options give. Raises `typer.BadParameter` if there is none."""
        source = self.source or self._conf.service_url
        if source is None:
            raise typer.BadParameter(
                "name the cluster with --source (or EQUIPOISE_PULSAR), or as brokerServiceUrl in"
                " --client-conf"
            )
        return Address(
            service_url=source,
            admin_urls=tuple(self.admin or ()),
            credentials=with_files(self._conf.credentials, self.token_file, self.ca_file),
            timeout_s=min(self.timeout_s, OPERATION_S),
        )

    @cached_property
    def address_with_admin(self) -> Address:
        """The same, with the admin API of `client.conf` if none was named: for commands that cannot
        do without it.

        Others do not ask it unasked: its role may read the topic alone. An archive needs none.
        """
        admin_url = self._conf.admin_url
        if self.address.admin_urls or admin_url is None or not is_url(self.address.service_url):
            return self.address
        return replace(self.address, admin_urls=(admin_url,))

    @cached_property
    def _conf(self) -> ClientConf:
        if self.client_conf is None:
            return ClientConf(None, None, NOBODY)
        return read_client_conf(self.client_conf)

    def deadline(self) -> Deadline:
        """Return the end of the command's time, from now."""
        return Deadline.after(timeout_ms=self.timeout_s * 1_000)
