"""Define the scenarios as data, and the catalogue that the tests, the soak and the laboratory
share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from equipoise.brokers.agent.leading import Batches
from equipoise.brokers.agent.timing import Timing, timing_of
from equipoise.brokers.balancing.namespace_policies import ON_CHANNEL_LOSS, OnChannelLoss
from equipoise.channel.core.records import Document
from tests.simulation.faults import NEVER, Crash, Faults, Scheduled, Span

# The leases of the embedded log. The service's deadlines, the leader's patience and
# `remove_after_ms` are shorter than in a real cluster, so that a run of a minute passes each of
# them many times.
SIMULATED_TIMING: Final = Timing(
    prepare_ms=1_500, open_ms=1_500, close_ms=1_000, patience_ms=4_000, remove_after_ms=6_000
)

# Clocks that deviate by up to 3 %, and the grace period for it: 2 x 3 % x 3,000 ms, and 420 ms for
# a stall.
WILD_CLOCKS_TIMING: Final = replace(SIMULATED_TIMING, grace_ms=600, clock_rate_error_ppm=30_000)

# The defaults on Kafka, where brokers outlast their leases by assurances. The extension is as long
# as a failover of 10 s needs.
_ON_KAFKA: Final = timing_of("kafka:")
EXTENDING_TIMING: Final = replace(
    SIMULATED_TIMING,
    lease_ms=_ON_KAFKA.lease_ms,
    renew_ms=_ON_KAFKA.renew_ms,
    grace_ms=_ON_KAFKA.grace_ms,
    round_trip_ms=_ON_KAFKA.round_trip_ms,
    reconnect_ms=_ON_KAFKA.reconnect_ms,
    failover_ms=_ON_KAFKA.failover_ms,
    extend_ms=12_150,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What operators and the balancer do: on average one operation per `every_ms`, drawn by weight.

    * `rash`: declare a live broker dead without proof.
    * `forged`: a record that its author may not write.
    * `junk`: bytes that are no record.
    """

    every_ms: int = 150
    transfer: int = 60
    cancel: int = NEVER
    unload: int = 10
    split: int = 8
    merge: int = 8
    namespace: int = 2
    policy: int = 1
    drain: int = 1
    declare_dead: int = 3
    rash: int = 1
    forged: int = 3
    junk: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One cluster and its faults for `seconds` of true time. Then faults stop, and the cluster must
    recover.

    * `duplicates`: how many brokers have a second process with the same id, on another machine with
      its own directory.
    * `bundles`: the initial number of bundles of each namespace.
    * `call_every_ms`: the mean time between calls. `call_ms`: how long the work of a call takes.
    * `nobody_dies`: nothing in the scenario excuses declaring a live broker dead.
    * `nobody_fences`: all brokers outlast each outage. A broker that may serve nothing breaks that.
    * `serving_on`: how many of the first namespaces are created with `on_channel_loss: serve`.
      Operators change that at times.
    * `compact_every_ms`: the mean time between compactions. Each has a random horizon and truncates
      the log, even below what readers have read.
    * `is_one_machine`: brokers learn when the process of another one has ended.
    * `picky`: how many of the first namespaces only the services of broker-0 accept, even after
      faults stop.
    * `other_timings`: each process is started with one of these and `timing`, also one that comes
      back.
    * `programs`: the patterns of namespaces that programs serve. Each process is started with one
      of these sets, also one that comes back. Empty: every program serves all.
    """

    name: str
    brokers: int = 8
    duplicates: int = 0
    seconds: int = 40
    timing: Timing = SIMULATED_TIMING
    other_timings: tuple[Timing, ...] = ()
    batches: Batches = field(default_factory=Batches)
    serving_on: int = 0
    is_one_machine: bool = False
    picky: int = 0
    programs: tuple[tuple[str, ...], ...] = ()
    bundles: tuple[int, ...] = (32, 8)
    operations: Operations = field(default_factory=Operations)
    faults: Faults = field(default_factory=Faults)
    call_every_ms: int = 25
    call_ms: Span = (0, 600)
    snapshot_every_ms: int = 10_000
    compact_every_ms: int = NEVER
    nobody_dies: bool = False
    nobody_fences: bool = False

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The names of the initial namespaces."""
        return tuple(f"tenant/namespace-{index}" for index in range(len(self.bundles)))

    def policies(self, namespace: str) -> Document:
        """Return the policies with which a namespace is created."""
        serves_on = namespace in self.namespaces[: self.serving_on]
        return {ON_CHANNEL_LOSS: OnChannelLoss.SERVE.value} if serves_on else {}

    def takes(self, broker: str, namespace: str) -> bool:
        """Return whether the service of a broker accepts the bundles of a namespace, if nothing
        goes wrong.
        """
        return broker == "broker-0" or namespace not in self.namespaces[: self.picky]


_ORDINARY: Final = Faults(
    lost_permille=5,
    refused_permille=5,
    doubtful_permille=3,
    twice_permille=5,
    late_permille=3,
    lag_permille=3,
    trouble_every_ms=40_000,
    outage_every_ms=60_000,
    refuses_permille=10,
    hangs_permille=5,
)

_HEAVY: Final = Faults(
    append_ms=(0, 40),
    read_ms=(0, 40),
    lost_permille=30,
    refused_permille=20,
    doubtful_permille=20,
    twice_permille=30,
    late_permille=30,
    lag_permille=20,
    leap_permille=1,
    trouble_every_ms=12_000,
    outage_every_ms=30_000,
    refuses_permille=20,
    hangs_permille=10,
    dies_permille=2,
)

_QUIET_OPERATIONS: Final = Operations(
    drain=NEVER, declare_dead=NEVER, rash=NEVER, forged=NEVER, junk=NEVER
)

# The brokers are often cut off together, and one joins, returns or crashes meanwhile. Their
# messages to each other come late, twice or not at all.
_ASSURANCES: Final = Scenario(
    name="assurances",
    brokers=2,
    duplicates=1,
    seconds=120,
    bundles=(4,),
    timing=replace(EXTENDING_TIMING, extend_ms=8_000, failover_ms=5_000),
    operations=replace(_QUIET_OPERATIONS, every_ms=5_000, transfer=1, unload=NEVER, split=NEVER),
    faults=Faults(
        late_permille=100,
        late_ms=(100, 6_000),
        lag_permille=50,
        lag_ms=(50, 3_000),
        direct_lost_permille=50,
        direct_late_permille=300,
        direct_twice_permille=100,
        late_death_permille=700,
        trouble_every_ms=5_000,
        crash_weight=2,
        lose_directory_weight=1,
        back_after_ms=(100, 4_000),
        pause_weight=1,
        hidden_pause_weight=1,
        cut_off_weight=12,
        cut_off_ms=(1_000, 16_000),
        outage_every_ms=20_000,
        outage_ms=(500, 10_000),
        reconnect_ms=(0, 3_000),
        wall_jump_ms=(0, 2_000),
    ),
    call_every_ms=50,
)

_CATALOGUE: Final = (
    Scenario(name="ordinary", compact_every_ms=5_000, faults=_ORDINARY),
    Scenario(name="heavy", faults=_HEAVY),
    Scenario(name="calm", operations=Operations(every_ms=40)),
    Scenario(
        name="moves",
        brokers=4,
        bundles=(32,),
        operations=replace(_QUIET_OPERATIONS, every_ms=6, split=2, merge=2),
        faults=Faults(
            lost_permille=5,
            late_permille=5,
            twice_permille=5,
            lag_permille=5,
            lag_ms=(20, 500),
            trouble_every_ms=15_000,
        ),
        call_every_ms=50,
    ),
    Scenario(
        # The second process of a broker's id loses the log in the same outage. It must not declare
        # the first one dead.
        name="outages",
        duplicates=2,
        seconds=60,
        operations=_QUIET_OPERATIONS,
        faults=Faults(outage_every_ms=12_000),
        nobody_dies=True,
    ),
    Scenario(
        name="long-outages",
        brokers=4,
        seconds=400,
        operations=_QUIET_OPERATIONS,
        faults=Faults(outage_every_ms=120_000, outage_ms=(1_500, 300_000)),
        nobody_dies=True,
    ),
    Scenario(
        # Outages of up to four leases, which all brokers outlast by assurances.
        name="extensions",
        brokers=4,
        bundles=(12,),
        timing=EXTENDING_TIMING,
        operations=_QUIET_OPERATIONS,
        faults=Faults(outage_every_ms=15_000, outage_ms=(200, 10_000), read_ms=(0, 20)),
        seconds=100,
        nobody_dies=True,
        nobody_fences=True,
    ),
    _ASSURANCES,
    # With more brokers, one assurance is not the assurance of all.
    replace(_ASSURANCES, name="assurances-of-all", brokers=3, duplicates=0),
    # Settings that are being changed: some leases are extended, others are short or long.
    replace(
        _ASSURANCES,
        name="mixed-leases",
        brokers=3,
        other_timings=(
            SIMULATED_TIMING,
            replace(SIMULATED_TIMING, lease_ms=6_000, renew_ms=1_500, grace_ms=600),
        ),
    ),
    Scenario(
        # Outages of the log, and single brokers that are cut off while others take their bundles. A
        # broker cannot tell one from the other.
        name="serving-on",
        brokers=4,
        bundles=(12, 12),
        serving_on=1,
        operations=Operations(
            every_ms=150, policy=8, namespace=NEVER, rash=NEVER, forged=NEVER, junk=NEVER
        ),
        faults=Faults(
            late_permille=5,
            trouble_every_ms=8_000,
            crash_weight=1,
            lose_directory_weight=NEVER,
            cut_off_weight=8,
            cut_off_ms=(1_000, 12_000),
            outage_every_ms=20_000,
        ),
        call_every_ms=10,
    ),
    Scenario(
        name="hostile",
        brokers=4,
        bundles=(8,),
        operations=Operations(every_ms=60, rash=10, forged=40, junk=40),
        faults=replace(
            _HEAVY,
            twice_permille=100,
            late_ms=(100, 3_000),
            lag_permille=60,
            leap_permille=4,
            cut_off_weight=8,
            cut_off_ms=(50, 3_000),
        ),
    ),
    Scenario(
        # The log is truncated far sooner than any retention allows. A broker that is paused, cut
        # off or lagging must resync, sometimes with a good lease and moves in progress.
        name="compaction",
        brokers=5,
        bundles=(16, 4),
        compact_every_ms=700,
        operations=Operations(every_ms=60, split=16, merge=16),
        faults=replace(
            _HEAVY,
            lag_permille=30,
            lag_ms=(50, 1_500),
            trouble_every_ms=8_000,
            pause_weight=6,
            cut_off_weight=6,
        ),
    ),
    Scenario(name="three-brokers", brokers=3, bundles=(12, 4), faults=_HEAVY),
    # More than 25, so that leases grow with each broker that joins.
    Scenario(
        name="many-brokers",
        brokers=28,
        bundles=(64, 16),
        faults=_ORDINARY,
        seconds=20,
        operations=Operations(every_ms=60),
    ),
    Scenario(
        name="lost-directories",
        brokers=5,
        duplicates=2,
        bundles=(16, 4),
        faults=Faults(
            lost_permille=10,
            late_permille=20,
            twice_permille=10,
            trouble_every_ms=10_000,
            crash_weight=2,
            lose_directory_weight=4,
            pause_weight=3,
            cut_off_weight=3,
        ),
    ),
    Scenario(
        # Often no other broker can declare a broker dead that lost its directory: it must wait out
        # its own silence.
        name="two-brokers",
        brokers=2,
        duplicates=1,
        bundles=(8,),
        seconds=60,
        faults=replace(
            _ORDINARY, trouble_every_ms=6_000, lose_directory_weight=6, back_after_ms=(100, 6_000)
        ),
    ),
    Scenario(
        name="service-trouble",
        brokers=4,
        bundles=(16,),
        operations=Operations(every_ms=60),
        faults=Faults(
            refuses_permille=250, hangs_permille=80, dies_permille=2, service_ms=(1, 400)
        ),
    ),
    Scenario(
        # Operators cancel most transfers while the destination still prepares. At the end one
        # broker dies. The other has refused nothing, so it takes all bundles.
        name="cancels",
        brokers=2,
        bundles=(4,),
        operations=replace(
            _QUIET_OPERATIONS,
            every_ms=50,
            cancel=60,
            unload=1,
            split=NEVER,
            merge=NEVER,
            namespace=NEVER,
        ),
        faults=Faults(
            service_ms=(50, 700),
            hangs_permille=10,
            scheduled=(
                Scheduled(at_ms=39_900, trouble=Crash(host="broker-1", back_after_ms=None)),
            ),
        ),
    ),
    Scenario(
        # Brokers that lag or are cut off resync past the end of one transfer and the start of the
        # next, and past deaths of destinations that restart at once. Preparing and closing take
        # long enough for that.
        name="resyncs",
        brokers=4,
        bundles=(24,),
        compact_every_ms=150,
        operations=replace(
            _QUIET_OPERATIONS,
            every_ms=25,
            cancel=30,
            unload=1,
            split=NEVER,
            merge=NEVER,
            namespace=NEVER,
        ),
        faults=Faults(
            lag_permille=20,
            lag_ms=(50, 1_000),
            trouble_every_ms=2_500,
            crash_weight=3,
            lose_directory_weight=NEVER,
            back_after_ms=(20, 300),
            pause_weight=NEVER,
            hidden_pause_weight=NEVER,
            cut_off_weight=6,
            cut_off_ms=(100, 1_500),
            service_ms=(50, 700),
        ),
    ),
    Scenario(
        # More bundles than one batch holds can never be placed or moved, and their names come
        # first. Calls are rare, because a lookup places a bundle outside the batches.
        name="narrow",
        brokers=4,
        batches=Batches(placements_max=2, transfers_max=2),
        picky=1,
        bundles=(6, 24),
        operations=replace(
            _QUIET_OPERATIONS, every_ms=100, unload=20, namespace=15, drain=8, declare_dead=3
        ),
        faults=Faults(
            lost_permille=10, late_permille=10, trouble_every_ms=15_000, back_after_ms=(100, 2_000)
        ),
        call_every_ms=2_000,
    ),
    Scenario(
        # Programs of several kinds share the log, and often come back as another kind. So some
        # namespaces have no broker for a while, and their bundles wait for the first that joins.
        name="programs",
        brokers=5,
        bundles=(12, 6, 6),
        programs=(
            ("tenant/namespace-0",),
            ("tenant/namespace-1", "tenant/e*"),
            ("*/*-0", "*namespace*2"),
            ("tenant/*",),
            ("another/*",),
        ),
        operations=Operations(every_ms=60, drain=4),
        compact_every_ms=3_000,
        faults=replace(
            _ORDINARY, trouble_every_ms=6_000, crash_weight=8, back_after_ms=(100, 4_000)
        ),
    ),
    Scenario(
        # The brokers share a machine, so each end of a process is proven at once, mostly. Programs
        # come back while the proof of their end is still under way.
        name="one-machine",
        brokers=5,
        duplicates=1,
        is_one_machine=True,
        bundles=(16, 4),
        operations=replace(_QUIET_OPERATIONS, every_ms=100, drain=2),
        faults=replace(
            _HEAVY,
            trouble_every_ms=4_000,
            crash_weight=8,
            back_after_ms=(1, 2_000),
            service_ms=(1, 100),
        ),
    ),
    Scenario(
        name="drains",
        brokers=6,
        bundles=(24, 6),
        operations=Operations(every_ms=100, drain=12),
        faults=Faults(
            lost_permille=10, late_permille=10, trouble_every_ms=30_000, back_after_ms=(100, 2_000)
        ),
    ),
    Scenario(
        name="reshaping",
        brokers=5,
        bundles=(16,),
        operations=Operations(every_ms=40, split=40, merge=40, namespace=6),
        faults=Faults(
            lost_permille=10, late_permille=10, twice_permille=20, trouble_every_ms=30_000
        ),
    ),
    Scenario(
        name="wild-clocks",
        brokers=5,
        bundles=(16,),
        timing=WILD_CLOCKS_TIMING,
        faults=Faults(
            clock_rate_error_ppm=30_000,
            trouble_every_ms=8_000,
            crash_weight=1,
            lose_directory_weight=NEVER,
            pause_weight=4,
            hidden_pause_weight=4,
            cut_off_weight=4,
            # Never back: that would hide a sleep that the boot clock has not counted either.
            wall_jump_ms=(0, 3_000),
        ),
    ),
)

SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _CATALOGUE}
