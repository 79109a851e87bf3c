"""Simulate operators and the balancer: random moves, splits, merges, drains, declarations of death,
and forged records.

Each operation is drawn against the newest view.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from equipoise.brokers.agent.events import DrainRequested
from equipoise.brokers.agent.requests import (
    Cancel,
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    Unload,
)
from equipoise.brokers.balancing.namespace_policies import ON_CHANNEL_LOSS, OnChannelLoss
from equipoise.brokers.balancing.splitting.split_points import (
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import AnyRecord, Scalar
from tests.simulation.clock import MICROSECONDS_PER_MS
from tests.simulation.courier import Courier, Link
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.host import Host, Process
from tests.simulation.parts import Parts

# The number of bundles stays between its initial value divided and multiplied by this factor.
_BUNDLES_MAX_FACTOR: Final = 2
_EXTRA_NAMESPACE: Final = "tenant/extra"
_EXTRA_BUNDLES: Final = 4
_POLICY: Final = "limits"
_DRAIN_MS: Final = (500, 5_000)
_BEGIN_AGAIN_US: Final = 200 * MICROSECONDS_PER_MS

# The share of operations that an operator appends to the log directly, without a broker.
_BY_ADMIN_PERMILLE: Final = 200
_ADMIN: Final = "admin:operator"

_JUNK: Final = (
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"kind":"bundle"}',
    b'{"kind":"broker","status":"joined"}',
    b"\xff\xfe",
    b'{"kind":7}',
)


class Operators:
    """All operators of a run. Their own records use a separate link to the log."""

    def __init__(self, parts: Parts, log: FaultyLog, hosts: list[Host], courier: Courier) -> None:
        self.link = Link()
        self._parts = parts
        self._log = log
        self._hosts = hosts
        self._courier = courier
        self._stopped = False
        weights = parts.scenario.operations
        self._operations: tuple[tuple[Callable[[], None], int], ...] = (
            (self._transfer, weights.transfer),
            (self._cancel, weights.cancel),
            (self._unload, weights.unload),
            (self._split, weights.split),
            (self._merge, weights.merge),
            (self._namespace, weights.namespace),
            (self._policy, weights.policy),
            (self._drain, weights.drain),
            (self._declare_dead, weights.declare_dead),
            (self._rash, weights.rash),
            (self._forged, weights.forged),
            (self._junk, weights.junk),
        )

    def begin(self) -> None:
        """Create the scenario's namespaces until they exist, then go on with random operations."""
        parts, view = self._parts, self._log.view
        names = parts.scenario.namespaces
        missing = [index for index, name in enumerate(names) if name not in view.namespaces]
        for index in missing if view.genesis is not None else ():
            boundaries = even_boundaries(parts.scenario.bundles[index])
            policies = parts.scenario.policies(names[index])
            self._write(
                partial(
                    propose.create_namespace,
                    view=view,
                    name=names[index],
                    boundaries=boundaries,
                    policies=policies,
                )
            )
        parts.schedule.after(_BEGIN_AGAIN_US, self.begin if missing else self._go_on)

    def stop(self) -> None:
        """Request nothing more."""
        self._stopped = True

    def _go_on(self) -> None:
        parts = self._parts
        if self._stopped:
            return
        parts.chance.by_weight(self._operations)()
        parts.schedule.after(
            parts.chance.about(parts.scenario.operations.every_ms) * MICROSECONDS_PER_MS,
            self._go_on,
        )

    # --- requests ---

    def _ask(self, intent: Intent) -> None:
        """Request `intent` from some running broker."""
        process = self._some_process()
        if process is not None:
            process.submit(intent)

    def _write(self, make: Callable[[Author], AnyRecord]) -> None:
        """Append to the log directly, as the command line does."""
        record = make(Author(publisher=_ADMIN, as_of=max(self._log.view.offset, 0)))
        self._courier.send(encode(record), self.link, None)

    def _some_process(self) -> Process | None:
        processes = [
            host.process
            for host in self._hosts
            if host.process is not None and host.process.agent.is_ready
        ]
        return self._parts.chance.one_of(processes) if processes else None

    def _some_owned(self) -> BundleEntry | None:
        owned = [bundle for bundle in self._log.view.bundles.values() if bundle.phase == "owned"]
        return self._parts.chance.one_of(owned) if owned else None

    def _by_admin(self) -> bool:
        return self._parts.chance.happens(_BY_ADMIN_PERMILLE)

    # --- operations on bundles ---

    def _transfer(self) -> None:
        bundle, brokers = self._some_owned(), self._log.view.live_brokers()
        if bundle is None or not brokers:
            return
        # A draining destination is allowed here: the log refuses it.
        destination = self._parts.chance.one_of(brokers)
        if self._by_admin():
            self._write(
                lambda author: propose.transfer(
                    author, bundle, destination=destination.incarnation, reason="balance"
                )
            )
        else:
            self._ask(
                Transfer(bundle=bundle.name, destination=destination.broker, reason="balance")
            )

    def _cancel(self) -> None:
        """Cancel a transfer that is not complete."""
        cancellable = [
            bundle for bundle in self._log.view.unsettled() if bundle.phase == "transferring"
        ]
        if not cancellable:
            return
        bundle = self._parts.chance.one_of(cancellable)
        if self._by_admin():
            self._write(lambda author: propose.cancel(author, bundle, reason="operator"))
        else:
            self._ask(Cancel(bundle=bundle.name, reason="operator"))

    def _unload(self) -> None:
        bundle = self._some_owned()
        if bundle is None:
            return
        if self._by_admin():
            self._write(lambda author: propose.unload(author, bundle, reason="operator"))
        else:
            self._ask(Unload(bundle=bundle.name, reason="operator"))

    def _split(self) -> None:
        bundle, view, scenario = self._some_owned(), self._log.view, self._parts.scenario
        if bundle is None or len(view.bundles) >= sum(scenario.bundles) * _BUNDLES_MAX_FACTOR:
            return
        if self._parts.chance.happens(500):
            self._ask(
                SplitBundle(bundle=bundle.name, algorithm=RANGE_EQUALLY_DIVIDE, reason="too hot")
            )
        else:
            drawn = tuple(
                self._parts.chance.within((bundle.low, min(bundle.high * 2, HASH_MAX)))
                for _ in range(3)
            )
            inside = tuple(sorted({point for point in drawn if bundle.low < point < bundle.high}))
            # If no point lies inside, the request is wrong and the service refuses it.
            positions = inside or drawn
            self._ask(
                SplitBundle(
                    bundle=bundle.name,
                    algorithm=SPECIFIED_POSITIONS_DIVIDE,
                    positions=positions,
                    reason="operator",
                )
            )

    def _merge(self) -> None:
        view, chance = self._log.view, self._parts.chance
        bundle = self._some_owned()
        right = None if bundle is None else view.right_neighbour(bundle)
        if (
            bundle is None
            or right is None
            or len(view.bundles) <= sum(self._parts.scenario.bundles) // _BUNDLES_MAX_FACTOR
        ):
            return
        if right.owner == bundle.owner or chance.happens(200):
            self._ask(MergeBundles(left=bundle.name, reason="too small"))
        elif right.phase == "owned" and bundle.owner in view.live:
            self._ask(
                Transfer(
                    bundle=right.name, destination=view.live[bundle.owner].broker, reason="to merge"
                )
            )

    def _namespace(self) -> None:
        """Take the next step in the life of the extra namespace."""
        view = self._log.view
        extra = view.namespaces.get(_EXTRA_NAMESPACE)
        if extra is None:
            self._ask(
                CreateNamespace(name=_EXTRA_NAMESPACE, boundaries=even_boundaries(_EXTRA_BUNDLES))
            )
        elif extra.status == "created":
            self._ask(StartDeletingNamespace(name=_EXTRA_NAMESPACE))
        else:
            for bundle in view.bundles_of(_EXTRA_NAMESPACE):
                if bundle.phase == "owned":
                    self._ask(Unload(bundle=bundle.name, reason="its namespace is being deleted"))
            self._ask(DeleteNamespace(name=_EXTRA_NAMESPACE))

    def _policy(self) -> None:
        """Set a policy of the cluster or of a namespace, or remove one."""
        view, chance = self._log.view, self._parts.chance
        document: dict[str, Scalar] = {"load_ratio_max": chance.within((1, 100))}
        if view.namespaces and chance.happens(500):
            name = chance.one_of(list(view.namespaces))
            if self._parts.scenario.serving_on:
                document[ON_CHANNEL_LOSS] = chance.one_of(tuple(OnChannelLoss)).value
            self._write(
                partial(propose.set_namespace_policies, view=view, name=name, policies=document)
            )
        elif _POLICY in view.policies and chance.happens(500):
            self._write(partial(propose.remove_policy, view=view, name=_POLICY))
        else:
            self._write(partial(propose.set_policy, view=view, name=_POLICY, document=document))

    # --- operations on brokers ---

    def _drain(self) -> None:
        """Have a broker drain and leave. If no other drains, it may also only drain: some broker
        must take its bundles.
        """
        process, chance = self._some_process(), self._parts.chance
        if process is None:
            return
        drain_ms = chance.within(_DRAIN_MS)
        leave = chance.happens(800) or any(
            broker.status == "draining" for broker in self._log.view.live_brokers()
        )
        self._parts.story.say(
            process.host.name,
            "is asked to drain{} within {} ms",
            " and leave" if leave else "",
            drain_ms,
        )
        process.deliver(
            DrainRequested(leave=leave, deadline_ms=process.host.now().boot_ms + drain_ms)
        )

    def _declare_dead(self) -> None:
        """Declare dead each broker whose host runs no process and whose directory holds the live
        instance id.
        """
        for host in self._hosts:
            broker = self._log.view.brokers.get(host.broker)
            if (
                host.process is None
                and broker is not None
                and broker.live
                and broker.joined.instance_id in host.directory.instance_ids
            ):
                self._write(
                    partial(
                        propose.down,
                        broker=broker,
                        instance_id=broker.joined.instance_id,
                        reason="its process has ended",
                    )
                )

    def _rash(self) -> None:
        """Declare a live broker dead without proof."""
        brokers = self._log.view.live_brokers()
        if brokers:
            broker = self._parts.chance.one_of(brokers)
            instance_id = self._parts.chance.one_of((None, "a guess"))
            self._write(
                lambda author: propose.down(
                    author, broker, instance_id=instance_id, reason="it does not answer me"
                )
            )

    def _forged(self) -> None:
        """Write as an admin a record that only a bundle's owner or source, or a broker itself, may
        write.
        """
        view, chance = self._log.view, self._parts.chance
        unsettled, brokers = view.unsettled(), view.live_brokers()
        if unsettled and chance.happens(800):
            bundle = chance.one_of(unsettled)
            if bundle.phase in _FORGERIES:
                self._write(lambda author: _FORGERIES[bundle.phase](author, bundle))
        elif brokers:
            broker = chance.one_of(brokers)
            forgery = chance.one_of((propose.draining, propose.left))
            self._write(lambda author: forgery(author, broker, reason="forged"))

    def _junk(self) -> None:
        """Append bytes that are no record, or repeat an earlier record."""
        chance, entries = self._parts.chance, self._log.entries
        data = (
            chance.one_of(entries).data if entries and chance.happens(500) else chance.one_of(_JUNK)
        )
        self._courier.send(data, self.link, None)


_FORGERIES: Final[dict[str, Callable[[Author, BundleEntry], AnyRecord]]] = {
    "assigning": propose.opened,
    "transferring": propose.prepared,
    "handing_over": propose.hand_over,
    "unloading": propose.released,
    "splitting": lambda author, bundle: propose.split(
        author, bundle, cuts=((bundle.low + bundle.high) // 2,)
    ),
}
