"""Provide the command line of the local Kafka, `python -m compose.local_kafka`.

It prints the address to the standard output, and everything else to the standard error.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from compose.local_kafka.cluster import HEAP_MB, NODES, Cluster, is_laid_out
from compose.local_kafka.jars import HOME, class_path
from equipoise.channel.core.errors import OperatorError

PORT: Final = 9092

_PORT_MAX: Final = 65_535 - 8
_DOWN: Final = 3  # The exit code of init scripts.


def main(words: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    arguments = _parser().parse_args(words)
    commands = {"jars": _jars, "start": _start, "stop": _stop, "status": _status, "leash": _leash}
    try:
        return commands[arguments.command](arguments)
    except OperatorError as error:
        _note(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m compose.local_kafka",
        description="A real Kafka on this machine, without Docker.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "jars", help="have Maven fetch the jars of Kafka, and Java archive its classes, once"
    )
    start = commands.add_parser(
        "start", help="start it, wait until it serves, and print its address"
    )
    stop = commands.add_parser("stop", help="stop it; its topics stay")
    status = commands.add_parser(
        "status", help=f"say which nodes run; exit code {_DOWN} if none does"
    )
    leash = commands.add_parser("leash", help="wait until the standard input ends, then kill it")
    for command in (start, stop, status, leash):
        command.add_argument(
            "--nodes", type=int, choices=NODES, help="1 or 3; there may be one Kafka of each"
        )
        command.add_argument(
            "--folder",
            type=Path,
            help=f"where its data is  [default: {HOME.name}/nodes-1 or nodes-3]",
        )
    start.add_argument(
        "--port",
        type=_port,
        default=PORT,
        help="of the first node; 0: as before, or any that is free  [default: %(default)s]",
    )
    start.add_argument(
        "--heap-mb",
        type=int,
        default=HEAP_MB,
        metavar="MB",
        help="memory for each node  [default: %(default)s]",
    )
    start.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting of Kafka; may be repeated",
    )
    for command in (stop, status):
        command.add_argument("--node", type=int, metavar="NUMBER", help="only this one, from 1")
    stop.add_argument("--kill", action="store_true", help="at once, as by `kill -9`")
    return parser


def _port(text: str) -> int:
    """Parse a port that leaves room for the nine ports of three nodes."""
    port = int(text)
    if not 0 <= port <= _PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not 0 to {_PORT_MAX}")
    return port


def _folders(arguments: argparse.Namespace) -> Sequence[Path]:
    """Return the folders of a command's clusters: the named one, or else all."""
    if arguments.folder:
        return [arguments.folder]
    return [HOME / f"nodes-{nodes}" for nodes in ([arguments.nodes] if arguments.nodes else NODES)]


def _clusters(arguments: argparse.Namespace) -> Sequence[Cluster]:
    """Return the existing clusters of a command. Raises `OperatorError` if a named one does not
    exist.
    """
    is_named = arguments.folder or arguments.nodes
    folders = [each for each in _folders(arguments) if is_named or is_laid_out(each)]
    return [Cluster.laid_out(folder) for folder in folders]


def _jars(_arguments: argparse.Namespace) -> int:
    class_path(note=_note)
    # Beside the archive, so that it can be moved there at once.
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        Cluster.lay_out(Path(folder)).archive_classes()
    return 0


def _start(arguments: argparse.Namespace) -> int:
    extra = dict(_pair(text) for text in arguments.property)
    nodes = arguments.nodes or 1
    folder = arguments.folder or HOME / f"nodes-{nodes}"
    class_path(note=_note)
    cluster = Cluster.lay_out(
        folder, nodes=nodes, port=arguments.port, extra=extra, heap_mb=arguments.heap_mb
    )
    cluster.start()
    print(cluster.address)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OperatorError(f"--property takes NAME=VALUE, not {text!r}")
    return name, value


def _stop(arguments: argparse.Namespace) -> int:
    for cluster in _clusters(arguments):
        target = cluster if arguments.node is None else cluster.node(arguments.node)
        if arguments.kill:
            target.kill()
        else:
            target.stop()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    running = 0
    for cluster in _clusters(arguments):
        for node in cluster.nodes if arguments.node is None else [cluster.node(arguments.node)]:
            pid = node.pid
            running += pid is not None
            print(f"{cluster.folder} {node.name} {'down' if pid is None else f'up, process {pid}'}")
        print(f"{cluster.folder} {cluster.address}")
    return 0 if running else _DOWN


def _leash(arguments: argparse.Namespace) -> int:
    """Kill the cluster when the standard input ends: so the process at its other end cannot die
    without stopping its Kafka.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for that process.
    while sys.stdin.buffer.read(4_096):
        pass
    for cluster in _clusters(arguments):
        cluster.kill()
    return 0


def _note(text: str) -> None:
    print(f"local Kafka: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
