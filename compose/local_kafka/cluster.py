"""Lay out a cluster of Kafka nodes in a folder, start it, and stop it."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from compose.local_kafka.jars import class_archive, class_path, no_cluster, tool
from compose.local_kafka.node import HOST, STOP_S, Node, Ports, server_properties
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.file_system import locked
from equipoise.channel.system.free_ports import are_free, free_ports

NODES: Final = (1, 3)
"""How many nodes a cluster may have. Two would be less available than one, since both are needed
for a majority."""

HEAP_MB: Final = 256
"""Kafka's heap in MB. The process uses about twice that."""

_ARCHIVE_S: Final = 120.0
"""A node needs 4 s on two quiet cores to archive its classes and stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The identity and settings of a cluster. For `proxies` and `extra` see `server_properties`."""

    cluster_id: str
    ports: tuple[Ports, ...]
    proxies: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    heap_mb: int = HEAP_MB

    def to_json(self) -> str:
        """Return the layout as text, for `from_json`."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the layout from a text of `to_json`."""
        known = json.loads(text)
        ports, proxies = (
            tuple(Ports(**one) for one in known.pop("ports")),
            tuple(known.pop("proxies")),
        )
        return cls(ports=ports, proxies=proxies, **known)


class Cluster:
    """A Kafka of one node or three in a folder that stores its layout. Opening the same folder
    returns the same Kafka.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        """Use `lay_out` or `laid_out` instead."""
        self.folder = folder
        self.layout = layout
        numbers = range(1, len(layout.ports) + 1)
        self.nodes = tuple(
            Node(folder / f"node-{number}", number=number, heap_mb=layout.heap_mb)
            for number in numbers
        )

    @classmethod
    def laid_out(cls, folder: Path) -> Self:
        """Return the cluster that is laid out in a folder. Raises `OperatorError`."""
        folder = folder.absolute()
        try:
            return cls(folder, Layout.from_json(_layout_file(folder).read_text()))
        except FileNotFoundError:
            raise no_cluster(folder, "there is no local Kafka") from None
        except (KeyError, TypeError, ValueError) as error:
            raise _other_layout(
                folder, f"{_layout_file(folder).name} cannot be read ({error!r})"
            ) from error

    @classmethod
    def lay_out(
        cls,
        folder: Path,
        *,
        nodes: int = 1,
        port: int = 0,
        proxies: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB,
    ) -> Self:
        """Return the cluster of a folder. Lays it out if it does not exist, and anew if no node
        runs; its data stays.

        `port` is the first node's port for clients; the next nodes use the following ports. With 0
        the former ports are used, or free ones. Raises `OperatorError` if the folder holds a
        different Kafka, or a running one with other settings.
        """
        assert nodes in NODES, f"{nodes} nodes"
        folder = folder.absolute()
        wanted = Layout(
            cluster_id=_cluster_id(),
            ports=(),
            proxies=tuple(proxies),
            extra=dict(extra or {}),
            heap_mb=heap_mb,
        )
        if not is_laid_out(folder):
            cluster = cls(folder, replace(wanted, ports=_ports(nodes, port)))
        else:
            known = cls.laid_out(folder)
            if len(known.nodes) != nodes:
                raise _other_layout(
                    folder, f"the number of its nodes is {len(known.nodes)}, not {nodes}"
                )
            if known.is_running:
                known.check_same(wanted, port=port)
                return known
            ports = _ports(nodes, port) if port else known.layout.ports
            cluster = cls(folder, replace(wanted, cluster_id=known.layout.cluster_id, ports=ports))
        cluster.write()
        return cluster

    @property
    def address(self) -> str:
        """The addresses for clients (`bootstrap.servers`)."""
        return ",".join(f"{HOST}:{one.client}" for one in self.layout.ports)

    @property
    def proxied_addresses(self) -> Sequence[str]:
        """The address of each node to which its proxy must forward connections."""
        return [f"{HOST}:{one.proxied}" for one in self.layout.ports]

    @property
    def is_running(self) -> bool:
        """Whether any node runs."""
        return any(node.pid is not None for node in self.nodes)

    def node(self, number: int) -> Node:
        """Return a node by its number, from 1. Raises `OperatorError`."""
        if not 1 <= number <= len(self.nodes):
            raise no_cluster(self.folder, f"it has no node {number}, only 1 to {len(self.nodes)}")
        return self.nodes[number - 1]

    def check_same(self, wanted: Layout, *, port: int) -> None:
        """Raise `OperatorError` unless the running cluster has the wanted settings and begins at
        `port` (0 for any).
        """
        running = replace(self.layout, cluster_id=wanted.cluster_id, ports=())
        if running != wanted or port not in (0, self.layout.ports[0].client):
            raise _other_layout(
                self.folder, f"it runs at {self.address}, with other settings than those asked for"
            )

    def write(self) -> None:
        """Write the layout, and the settings of the nodes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _layout_file(self.folder).write_text(self.layout.to_json())
        for node in self.nodes:
            properties = server_properties(
                node.number,
                ports=self.layout.ports,
                proxies=self.layout.proxies,
                data=node.data,
                extra=self.layout.extra,
            )
            node.configure(properties)

    def start(self) -> None:
        """Start the nodes that do not run, and wait until they serve.

        Raises `OperatorError`, after killing the nodes that it started, and `NotInstalled`.
        """
        with locked(self.folder):
            starting = [node for node in self.nodes if node.pid is None]
            for node in starting:
                self._check_ports(node)
            class_path()  # Once, before several nodes need it.
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(lambda node: node.format(self.layout.cluster_id), starting))
            try:
                for node in starting:  # Start all before waiting: none is ready without a majority.
                    node.begin()
                for node in starting:
                    node.wait_ready()
            except BaseException:
                for node in starting:
                    node.kill()
                raise

    def archive_classes(self) -> None:
        """Run the first node once, so that Java archives Kafka's classes: every later start takes
        half the time.

        Does nothing if the archive exists. Raises `OperatorError`, `NotInstalled`.
        """
        archive, node = class_archive(tool("java"), class_path()), self.nodes[0]
        if archive.exists():
            return
        # Java crashes if an archive is incomplete, so the file gets its name once it is whole.
        written = self.folder / archive.name
        node.format(self.layout.cluster_id)
        try:
            node.begin(archive=written)
            node.wait_ready()
            node.stop(timeout_s=_ARCHIVE_S)
        finally:
            node.kill()
        if not written.exists():
            raise OperatorError(
                f"Java wrote no archive of Kafka's classes when the node in {self.folder} stopped;"
                " try again"
            )
        written.replace(archive)

    def stop(self, *, timeout_s: float = STOP_S) -> None:
        """Stop the running nodes cleanly. A node that still runs after `timeout_s` is killed.
        Raises `OperatorError`.
        """
        for node in self.nodes:  # All at once: the last ones would wait in vain for a majority.
            node.ask_to_stop()
        for node in self.nodes:
            node.stop(timeout_s=timeout_s)

    def kill(self) -> None:
        """Kill all nodes (`kill -9`). Raises `OperatorError`."""
        for node in self.nodes:
            node.kill()

    def _check_ports(self, node: Node) -> None:
        ports = self.layout.ports[node.number - 1]
        for port in (
            ports.client,
            ports.controller,
            *([ports.proxied] if self.layout.proxies else []),
        ):
            if not are_free(port):
                raise OperatorError(
                    f"port {port} is taken by another program; name another port, or 0 for any that"
                    " are free"
                )


def is_laid_out(folder: Path) -> bool:
    """Return whether a folder has a cluster."""
    return _layout_file(folder).exists()


def _layout_file(folder: Path) -> Path:
    return folder / "layout.json"


def _cluster_id() -> str:
    """Return an id as Kafka's own tool makes it: 16 random bytes. A leading hyphen would look like
    an option.
    """
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


def _ports(nodes: int, first: int) -> tuple[Ports, ...]:
    """Return the ports of the nodes, from `first` on, or any free ones if it is 0."""
    ports = list(range(first, first + 3 * nodes)) if first else free_ports(3 * nodes)
    return tuple(
        Ports(client=ports[node], controller=ports[nodes + node], proxied=ports[2 * nodes + node])
        for node in range(nodes)
    )


def _other_layout(folder: Path, problem: str) -> OperatorError:
    return OperatorError(
        f"{folder} holds another Kafka: {problem}; stop that one, and remove its folder if its"
        " topics may go"
    )
