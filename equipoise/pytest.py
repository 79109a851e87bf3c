"""Test services with pytest: `pytest_plugins = ["equipoise.pytest"]` in `conftest.py` adds three
fixtures and one option.

If a test fails, its report has the story of the channel (clusters in virtual time) or the ends of
the brokers' logs (real processes).

PYTEST_DONT_REWRITE: a `conftest.py` that imports the types below imports this module before pytest
sees that it is a plugin.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import pytest

if TYPE_CHECKING:
    from equipoise.brokers.local.local_cluster import ClusterEvent, LocalCluster
    from equipoise.brokers.runtime.service import Service
    from equipoise.brokers.sharded.virtual_programs import Programs
    from equipoise.brokers.testing.moving_cluster import MovingCluster
    from equipoise.brokers.testing.virtual_cluster import Cluster

__all__ = [
    "MakeCluster",
    "MakeProcesses",
    "MovesAtEveryAwait",
    "equipoise_cluster",
    "equipoise_moves",
    "equipoise_processes",
]

LINES_MAX: Final = 200
"""Lines of a story or a log that a report shows: the last ones."""

S = TypeVar("S", bound="Service")

# Each returns a title and a text for the report of a failed test. An empty text is not shown.
_Evidence = Callable[[], tuple[str, str]]
_EVIDENCE: Final = pytest.StashKey[list[_Evidence]]()


class MakeCluster:
    """Start clusters in virtual time for one test: the value of the fixture `equipoise_cluster`."""

    def __init__(self, evidence: list[_Evidence], clusters: ExitStack) -> None:
        self._evidence = evidence
        self._clusters = clusters

    @overload
    def __call__(self, service: str, *, brokers: int | Sequence[str] = 3) -> Programs: ...
    @overload
    def __call__(
        self,
        service: Callable[[], S],
        *,
        brokers: int | Sequence[str] = 3,
        patience_ms: int = 1_000,
        serves_peers: bool = False,
    ) -> Cluster[S]: ...
    def __call__(self, service: Callable[[], S] | str, **options: Any) -> Cluster[S] | Programs:
        """Return a cluster that runs until the test ends. `equipoise.Cluster` defines the arguments
        and the errors. With the name of an app, such as `visits:app`, it consists of programs.
        """
        from equipoise.brokers.sharded.virtual_programs import Programs
        from equipoise.brokers.testing.virtual_cluster import Cluster

        cluster: Cluster[Any] = (
            Programs(service, **options)
            if isinstance(service, str)
            else Cluster(service, **options)
        )
        self._evidence.append(lambda: ("equipoise: the channel", _last(cluster.story())))
        return self._clusters.enter_context(cluster)


class MovesAtEveryAwait:
    """Run a scenario once for each of its await points, with a move there: the value of the fixture
    `equipoise_moves`.
    """

    def __init__(
        self,
        evidence: list[_Evidence],
        clusters: ExitStack,
        repeat: Callable[[int], str],
        only: int | None,
    ) -> None:
        """`repeat` returns the command that runs the test with one move; `only` is the one move of
        this session.
        """
        evidence += [self._move, self._story]
        self._clusters = clusters
        self._repeat = repeat
        self._only = only
        self._cluster: MovingCluster[Any] | None = None

    @overload
    def __call__(
        self,
        service: str,
        namespace: str,
        key: str,
        *,
        kills: bool = False,
        brokers: int | Sequence[str] = 3,
        patience_ms: int = 100,
    ) -> Iterator[Programs]: ...
    @overload
    def __call__(
        self,
        service: Callable[[], S],
        namespace: str,
        key: str,
        *,
        brokers: int | Sequence[str] = 3,
        patience_ms: int = 100,
        serves_peers: bool = False,
    ) -> Iterator[Cluster[S]]: ...
    def __call__(
        self, service: Callable[[], S] | str, namespace: str, key: str, **options: Any
    ) -> Iterator[Cluster[S] | Programs]:
        """Yield a new cluster for each run: one without a move, then one for each await point, with
        a move of the bundle of `key`.

        The body of the loop is the scenario: the same in each run.

        An await point is a suspension of a coroutine of the service or of the test, in any task,
        while a broker owns the bundle. The coroutine continues when the move is over, or after
        `patience_ms` of real time if the move waits for it. `equipoise.Cluster` defines the other
        arguments.

        With the name of an app, such as `visits:app`, the clusters consist of programs, which the
        scenario calls by `request`. Their namespaces exist. With `kills`, the owner of the key is
        killed at the await point.

        Raises `CallerError` if there is no await point, or if a run does not reach its point.
        """
        from equipoise.brokers.sharded.virtual_programs import Programs
        from equipoise.brokers.testing.moving_cluster import MovingCluster, moves_at_every_await

        def cluster(at: int | None) -> MovingCluster[Any]:
            if isinstance(service, str):
                return Programs(service, namespace, key, at=at, **options)
            return MovingCluster(service, namespace, key, at=at, **options)

        runs = moves_at_every_await(cluster, about=f"{key!r} in {namespace}", only=self._only)
        self._clusters.callback(runs.close)  # Ends the cluster of a run that failed.
        for moving in runs:
            self._cluster = moving
            yield moving
        self._cluster = None  # What fails from now on fails outside the scenario.

    def _move(self) -> tuple[str, str]:
        if self._cluster is None:
            return "", ""
        move = self._cluster.move
        if move is None:
            return "equipoise: no move", "No bundle moved in this run before the test failed."
        return (
            f"equipoise: move {move.number}",
            f"{move}\nRepeat only this run:\n  {self._repeat(move.number)}",
        )

    def _story(self) -> tuple[str, str]:
        return "equipoise: the channel", (
            "" if self._cluster is None else _last(self._cluster.story())
        )


class MakeProcesses:
    """Start clusters of real broker processes for one test: the value of the fixture
    `equipoise_processes`.
    """

    def __init__(self, evidence: list[_Evidence], clusters: ExitStack, directory: Path) -> None:
        self._evidence = evidence
        self._clusters = clusters
        self._directory = directory
        self._started = 0

    def __call__(
        self,
        *services: str,
        brokers: int = 3,
        settings: Mapping[str, str | int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> LocalCluster:
        """Return a cluster of processes, all of them members, on free ports and with a log in
        `tmp_path`. It ends with the test.

        `services` are the values of `equipoise up --service`, such as `visits:Visits`; `settings`
        are those of brokers. The processes find modules in the working folder, and in the
        `PYTHONPATH` of `environment`.

        Raises `OperatorError` if a broker ends or is not ready in time, and for settings that no
        broker accepts.
        """
        from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster

        self._started += 1
        cluster_settings = ClusterSettings(
            directory=self._directory / f"equipoise-{self._started}",
            brokers=brokers,
            services=services or ("counter",),
            settings=settings or {},
            environment=environment or {},
        )
        events: list[ClusterEvent] = []
        cluster = LocalCluster(cluster_settings, report=events.append)
        self._evidence.append(
            lambda: (
                "equipoise: what happened to the brokers",
                _last([f"{event.broker} {event.text}" for event in events]),
            )
        )
        for directory in cluster.directories:
            self._evidence.append(partial(_log_in, directory))
        return self._clusters.enter_context(cluster)


@pytest.fixture
def equipoise_cluster(request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """Start clusters in virtual time with your service. They end with the test."""
    with ExitStack() as clusters:
        yield MakeCluster(_evidence_of(request), clusters)


@pytest.fixture
def equipoise_moves(request: pytest.FixtureRequest) -> Iterator[MovesAtEveryAwait]:
    """Run a scenario again and again, and move a bundle at another await point each time."""
    test = shlex.quote(request.node.nodeid)
    only = request.config.getoption("equipoise_move", default=None)
    with ExitStack() as clusters:
        yield MovesAtEveryAwait(
            _evidence_of(request),
            clusters,
            lambda number: f"pytest {test} --equipoise-move={number}",
            only,
        )


@pytest.fixture
def equipoise_processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeProcesses]:
    """Start clusters of real broker processes with your service. They end with the test."""
    with ExitStack() as clusters:
        yield MakeProcesses(_evidence_of(request), clusters, tmp_path)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that repeats one move."""
    parser.getgroup("equipoise").addoption(
        "--equipoise-move",
        metavar="NUMBER",
        type=_number,
        help=(
            "Run tests that use equipoise_moves only with the move at await point NUMBER. The"
            " report of a failed test names it."
        ),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the story of the channel and the brokers' logs to the report of a failed test."""
    report = yield
    if report.failed:
        shown = [evidence() for evidence in item.stash.get(_EVIDENCE, ())]
        report.sections += [(title, text) for title, text in shown if text]
    return report


def _evidence_of(request: pytest.FixtureRequest) -> list[_Evidence]:
    item: pytest.Item = request.node
    return item.stash.setdefault(_EVIDENCE, [])


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no await point; they are counted from 1")
    return int(text)


def _log_in(directory: Path) -> tuple[str, str]:
    log = directory / "broker.log"
    return f"equipoise: {log}", _last(
        log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ()
    )


def _last(lines: Sequence[str]) -> str:
    omitted = len(lines) - LINES_MAX
    return "\n".join(
        [f"... {omitted} earlier lines", *lines[-LINES_MAX:]] if omitted > 0 else lines
    )
