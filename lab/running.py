"""Replay a trace against settings in simulated time, as brokers do: sample, report, plan, move.

The planner knows loads by reports only, and every decision is made by the code that brokers run.
The lab replaces what needs processes: clocks, the network and services.

* Loads are constant within a step of the trace. A sample that would repeat the last one is left
  out, because samples take most of the time of a run.
* A unit of load is a call. It takes the smallest broker, which has one core, 1 / capacity seconds.
* The CPU use of a broker is its load divided by its capacity, at most 100 %.
* A death is known at once. The bundles of a dead broker are placed as the leader places them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from equipoise.brokers.balancing.placement import places_elsewhere
from equipoise.brokers.balancing.planning import cluster_snapshot_of, fresh, plan_round, stale_moves
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, placement_of
from equipoise.brokers.load.sampling import BundleAverages, Report, report_due, sampled
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord, Joined
from equipoise.channel.core.view import View, apply
from equipoise.lab.results import Owners, Result, RunMove, evenness, starting_owners
from equipoise.lab.traces import Trace
from equipoise.shedder.costs import Coefficients
from equipoise.shedder.loads import BundleLoad, Load, Resources, Use, averaged
from equipoise.shedder.plan import Move
from equipoise.shedder.scheduler import Scheduler
from equipoise.shedder.snapshot import EndedMove, Since

# How often the leader looks for a due round (`brokers.runtime.loops.balancing`). At most the
# shortest step of a trace.
_TICK_MS: Final = 250
_NAMESPACE: Final = "lab/trace"
_FIRST_SAMPLE_MS: Final = 200  # After a broker has joined (`brokers.runtime.loops.load_reporter`).
_EPOCH_MS: Final = 1_700_000_000_000  # The Unix time of the start. Any would do.
# A sample is repeated after so many longest report intervals. After three, a report no longer
# counts.
_REPEATED: Final = 2
MOVE_MS: Final = 200  # How long a move takes.
_DELAY_MS: Final = 100  # How long a report is on its way to the planner.
_CAPACITY: Final = 100  # One core: what the smallest broker has.


def run(
    trace: Trace,
    settings: BalancingSettings | None = None,
    *,
    seed: int = 1,
    move_ms: int = MOVE_MS,
) -> Result:
    """Return the outcome of `trace` under `settings`. Each bundle starts at a broker drawn by
    `seed`. A move takes `move_ms` milliseconds.
    """
    return _Run(trace, settings or BalancingSettings(), move_ms, seed).result()


@dataclass(slots=True)
class _Reporter:
    """The load reporter of one broker: `number` is its place in the trace, `due_ms` the time of its
    next look.

    `row` and `columns`: the step of the trace and the bundles that its last sample, at
    `sampled_ms`, covers.
    """

    number: int
    sampled_ms: int
    due_ms: int
    averages: BundleAverages = field(default_factory=BundleAverages)
    reported: Report | None = None
    row: int = -1
    columns: list[int] = field(default_factory=list)


class _Run:
    """One run. Times are milliseconds since the start of the trace, unless they are called Unix
    time.
    """

    def __init__(self, trace: Trace, settings: BalancingSettings, move_ms: int, seed: int) -> None:
        self._trace, self._settings, self._move_ms = trace, settings, move_ms
        self._seed = seed
        self._channel = _Channel(len(trace.bundles))
        self._column = {name: place for place, name in enumerate(self._channel.names)}
        self._number = {broker.broker: number for number, broker in enumerate(trace.brokers)}
        self._owners: Owners = np.full(len(trace.bundles), -1)
        self._reporters: dict[str, _Reporter] = {}
        self._reported: dict[str, Load] = {}
        self._arriving: list[tuple[int, Load]] = []
        self._scheduler, self._since = Scheduler(), Since()
        self._memory: object = None
        self._ending: dict[str, tuple[int, Move]] = {}
        self._moves: list[RunMove] = []
        self._loads: list[BundleLoad] = []
        self._least = float(trace.capacity.min())
        self._coefficients = Coefficients(per_call=1 / self._least)
        self._row = -1

    def result(self) -> Result:
        """Run to the end of the trace."""
        trace, rows = self._trace, list[tuple[float, float]]()
        step_ms = round(trace.step_s * 1_000)
        changes_ms = {round(at_s * 1_000) // _TICK_MS * _TICK_MS for at_s in trace.changes_s}
        for now_ms in range(0, len(trace.loads) * step_ms, _TICK_MS):
            # Before the next step, so that a move is made at the loads of the step that it changes
            # no more.
            self._end_moves(now_ms)
            is_new = now_ms // step_ms != self._row
            if is_new:
                self._row = now_ms // step_ms
                self._loads = [
                    BundleLoad(calls_per_second=load) for load in trace.loads[self._row].tolist()
                ]
            if now_ms in changes_ms:
                self._change_members(now_ms)
            self._report(now_ms)
            self._lead(now_ms)
            if is_new:
                rows.append(
                    evenness(trace, trace.loads[self._row], self._owners, at_s=now_ms / 1_000)
                )
        unevenness, excess = np.array(rows).T
        return Result(trace=trace, unevenness=unevenness, excess=excess, moves=tuple(self._moves))

    # --- members ---

    def _change_members(self, now_ms: int) -> None:
        live = self._channel.live
        interval_ms = self._settings.reports.sample_interval_ms
        for broker, is_live in zip(
            self._trace.brokers, self._trace.live(now_ms / 1_000).tolist(), strict=True
        ):
            if is_live and broker.broker not in live:
                self._channel.join(
                    broker.broker, capacity=round(_CAPACITY * broker.capacity / self._least)
                )
                number = self._number[broker.broker]
                due_ms = now_ms + _FIRST_SAMPLE_MS
                if now_ms:
                    self._scheduler.joined(broker.broker, now_ms)
                else:
                    # Brokers that have run for long do not sample at one moment, and no first
                    # report is awaited.
                    due_ms = number * interval_ms // len(self._trace.brokers)
                self._reporters[broker.broker] = _Reporter(
                    number=number, sampled_ms=now_ms, due_ms=due_ms
                )
            elif not is_live and broker.broker in live:
                self._channel.leave(broker.broker)
                self._reporters.pop(broker.broker)
                self._reported.pop(broker.broker, None)
        self._place_free(now_ms)

    def _place_free(self, now_ms: int) -> None:
        """Assign the bundles that no broker owns: at the start by chance, later by the configured
        placement.
        """
        free = [bundle for bundle in self._channel.view.unsettled() if bundle.phase == "free"]
        if now_ms == 0:
            owners = starting_owners(self._trace, self._seed).tolist()
            chosen = {
                name: self._trace.brokers[number].broker
                for name, number in zip(self._channel.names, owners, strict=True)
            }
        else:
            chosen = self._placed(free, now_ms)
        for bundle, broker in chosen.items():
            self._channel.own(bundle, broker)
            self._owners[self._column[bundle]] = self._number[broker]
            if now_ms:
                self._scheduler.moved(bundle, now_ms)

    def _placed(self, bundles: list[BundleEntry], now_ms: int) -> dict[str, str]:
        """Return where the configured placement puts these bundles, away from their owners."""
        view = self._channel.view
        known = fresh(self._reported.values(), self._settings, now_ms=_EPOCH_MS + now_ms)
        found = places_elsewhere(view, bundles, placement_of(self._settings, known))
        return {bundle: view.live[incarnation].broker for bundle, incarnation in found.items()}

    # --- reports ---

    def _report(self, now_ms: int) -> None:
        for broker, reporter in self._reporters.items():
            if now_ms >= reporter.due_ms:
                self._look(broker, reporter, now_ms)
        arrived = [sample for due_ms, sample in self._arriving if due_ms <= now_ms]
        self._arriving = [each for each in self._arriving if each[0] > now_ms]
        for sample in arrived:
            if sample.broker in self._reporters:
                self._reported[sample.broker] = averaged(self._reported.get(sample.broker), sample)
        if arrived:
            self._scheduler.reported([sample.broker for sample in arrived])

    def _look(self, broker: str, reporter: _Reporter, now_ms: int) -> None:
        """Take a sample, unless it would repeat the last one, and report it if a report is due."""
        rules, last = self._settings.reports, reporter.reported
        reporter.due_ms = now_ms + rules.sample_interval_ms
        columns = np.flatnonzero(self._owners == reporter.number).tolist()
        is_repetition = reporter.row == self._row and reporter.columns == columns
        if (
            is_repetition
            and last is not None
            and now_ms - last.at_ms < _REPEATED * rules.interval_max_ms
        ):
            return
        names = [self._channel.names[column] for column in columns]
        loads = {name: self._loads[column] for name, column in zip(names, columns, strict=True)}
        elapsed_ms = now_ms - reporter.sampled_ms
        load = sum(each.calls_per_second for each in loads.values())
        use = min(1.0, load / self._trace.brokers[reporter.number].capacity)
        carried = reporter.averages.update(
            names,
            loads,
            coefficients=self._coefficients,
            elapsed_ms=elapsed_ms,
            cost_window_ms=rules.cost_window_ms,
        )
        reporter.sampled_ms, reporter.row = now_ms, self._row
        # The figures of newcomers are complete at the next sample.
        reporter.columns = [] if carried.newcomers else columns
        at_ms, resources = _EPOCH_MS + now_ms, Resources(cpu=Use(used=100 * use, limit=100))
        sample = sampled(
            carried, broker=broker, at_ms=at_ms, resources=resources, settings=self._settings
        )
        report = Report(sample=sample, at_ms=now_ms, open_bundles=tuple(carried.settled))
        if report_due(last, report, rules):
            reporter.reported = report
            self._arriving.append((now_ms + _DELAY_MS, sample))

    # --- the leader ---

    def _lead(self, now_ms: int) -> None:
        rounds = self._settings.balancing
        if not (rounds.enabled and rounds.shedding):
            return
        self._begin_moves(now_ms)
        if not self._scheduler.due(now_ms, interval_ms=rounds.shed_interval_ms):
            return
        resting = self._scheduler.resting(now_ms, rest_ms=rounds.rest_ms)
        wall_ms = _EPOCH_MS + now_ms
        loads = [self._reported[broker] for broker in sorted(self._reported)]
        placement = placement_of(self._settings, fresh(loads, self._settings, now_ms=wall_ms))
        cluster = cluster_snapshot_of(
            self._channel.view,
            loads,
            self._settings,
            now_ms=wall_ms,
            resting=resting,
            since=self._since,
        )
        planned = plan_round(
            cluster, self._settings, placement, memory=self._memory, resting=resting
        )
        plan, self._memory, self._since = planned.plan, planned.memory, Since()
        self._scheduler.planned(plan.moves, fills=plan.fills)
        self._begin_moves(now_ms)

    def _begin_moves(self, now_ms: int) -> None:
        rounds, view = self._settings.balancing, self._channel.view
        started = self._scheduler.begin(
            {}, moves_max=rounds.moves_max, broker_moves_max=rounds.broker_moves_max
        )
        if not started:
            return
        stale = stale_moves(view, started, self._settings.placement, now_ms=_EPOCH_MS + now_ms)
        away = [
            view.bundles[move.bundle]
            for move in started
            if move.destination is None and move.bundle not in stale
        ]
        placed = self._placed(away, now_ms) if away else {}
        for move in started:
            destination = move.destination or placed.get(move.bundle)
            if move.bundle in stale or destination is None:
                self._scheduler.ended(move.bundle, now_ms)
            else:
                self._channel.begin_move(move.bundle, destination)
                self._ending[move.bundle] = (now_ms + self._move_ms, move)

    def _end_moves(self, now_ms: int) -> None:
        for bundle, (due_ms, move) in list(self._ending.items()):
            if due_ms > now_ms:
                continue
            del self._ending[bundle]
            destination = self._channel.end_move(bundle)
            if destination is not None:
                column = self._column[bundle]
                load = float(self._trace.loads[self._row, column])
                self._moves.append(
                    RunMove(
                        at_s=now_ms / 1_000,
                        bundle=column,
                        source=move.source,
                        destination=destination,
                        load=load,
                    )
                )
                self._owners[column] = self._number[destination]
            ended = EndedMove(
                source=move.source,
                destination=destination,
                at_ms=_EPOCH_MS + now_ms,
                duration_ms=self._move_ms,
            )
            self._since = self._since.and_ended(ended)
            self._scheduler.ended(bundle, now_ms)


class _Channel:
    """The channel of a run. `names` are the bundles in the order of the trace's columns."""

    def __init__(self, bundles: int) -> None:
        self.view = View()
        self._put(propose.genesis(Author(publisher="admin:lab"), cluster="lab"))
        boundaries = even_boundaries(bundles)
        self._put(
            propose.create_namespace(
                self._admin(), self.view, name=_NAMESPACE, boundaries=boundaries
            )
        )
        self.names = tuple(sorted(self.view.bundles))
        self._sequences: dict[str, int] = {}

    @property
    def live(self) -> Mapping[str, BrokerEntry]:
        """The live brokers, by id."""
        return {broker.broker: broker for broker in self.view.live_brokers()}

    def join(self, broker: str, *, capacity: int) -> None:
        """Let a broker join."""
        self._put(
            Joined(
                key=broker,
                expected_offset=self.view.last_of_broker(broker),
                publisher=broker,
                instance_id=f"{self.view.offset:032x}",
                lease_ms=3_000,
                grace_ms=500,
                renew_ms=1_000,
                addresses={"http": f"http://{broker}"},
                labels={},
                capacity=capacity,
            )
        )

    def leave(self, broker: str) -> None:
        """Let a broker go without a farewell: the first live broker declares it dead, and its
        bundles are free.
        """
        other = next(each for each in sorted(self.live) if each != broker)
        self._put(propose.down(self._author(other), self.live[broker]))

    def own(self, bundle: str, broker: str) -> None:
        """Assign a free bundle to a broker, which opens it."""
        self._put(
            propose.assign(
                self._admin(), self.view.bundles[bundle], owner=self.live[broker].incarnation
            )
        )
        self._put(propose.opened(self._author(broker), self.view.bundles[bundle]))

    def begin_move(self, bundle: str, destination: str) -> None:
        """Request a transfer."""
        self._put(
            propose.transfer(
                self._admin(),
                self.view.bundles[bundle],
                destination=self.live[destination].incarnation,
            )
        )

    def end_move(self, bundle: str) -> str | None:
        """Finish a transfer. Return the new owner, or None if a death ended the move otherwise."""
        entry = self.view.bundles[bundle]
        if entry.phase == "transferring" and entry.owner is not None and entry.source is not None:
            destination, source = (
                self.view.live[entry.owner].broker,
                self.view.live[entry.source].broker,
            )
            self._put(propose.prepared(self._author(destination), entry))
            self._put(propose.hand_over(self._author(source), self.view.bundles[bundle]))
            return destination
        if entry.phase == "assigning" and entry.owner is not None:
            destination = self.view.live[entry.owner].broker
            self._put(propose.opened(self._author(destination), entry))
            return destination
        return None

    def _admin(self) -> Author:
        return Author(publisher="admin:lab", as_of=self.view.offset)

    def _author(self, broker: str) -> Author:
        self._sequences[broker] = self._sequences.get(broker, 0) + 1
        return Author(
            publisher=broker,
            incarnation=self.live[broker].incarnation,
            sequence=self._sequences[broker],
        )

    def _put(self, record: AnyRecord) -> None:
        verdict = apply(self.view, self.view.offset + 1, record)
        assert verdict.accepted, verdict
