"""The language of the stories: what each command does on a stage.

README.md explains the commands. A story replaces the words in capitals; all others are literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from equipoise.brokers.agent.events import DrainRequested, Tick, UndrainRequested, Wanted
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.requests import (
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    SetClusterPolicy,
    SetPolicy,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    Unload,
    record_of,
)
from equipoise.brokers.balancing.named import server_of
from equipoise.brokers.balancing.policies import MAINTENANCE, control_document
from equipoise.brokers.balancing.splitting.split_points import (
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.runtime.router import goes_on
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry, Verdict
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.inspect import story
from tests.scenarios.stage import Link, Process, Stage
from tests.scenarios.words import NAMESPACE, duration_ms, full_name, point

_STANDING: Final = {"up": "is up", "draining": "drains", "left": "has left", "down": "is down"}

# How long a broker that leaves gives others to take over, unless the story says otherwise.
_DRAIN_MS: Final = 10_000


_PATTERNS: Final = {
    "HOSTS": r"[a-z](?: [a-z])*",
    "HOST": r"[a-z]",
    "BROKER": r"[a-z]",
    "WHO": r"[a-z]|admin",
    "BUNDLE": r"(?:t/\w+/)?[0-9a-f]+_[0-9a-f]+",
    "NAME": r"t/\w+",
    "PATTERNS": r"[a-z/*]+(?: [a-z/*]+)*",
    "COUNT": r"\d+",
    "OFFSET": r"\d+",
    "DURATION": r"\d+(?:ms|s|h)",
    "SETTING": r"[a-z_]+_ms",
    "DIGITS": r"[0-9a-f]+",
    "POLICY": r"[a-z_]+",
    "VALUE": r"[a-z]+",
    "MOOD": r"refuses|hangs|dies|waits",
    "OPERATION": r"prepare|open|close|cut",
}


class UnknownCommandError(Exception):
    """A line of a story is no command."""


def perform(stage: Stage, line: str) -> list[str]:
    template = template_of(line)
    found = _PATTERN_OF[template].fullmatch(line)
    assert found is not None, "it is this template because it matches"
    _COMMANDS[template](stage, *found.groups())
    stage.settle()
    stage.check()
    return stage.take_lines()


def play(*commands: str) -> Stage:
    stage = Stage()
    for command in commands:
        perform(stage, command)
    return stage


def templates() -> list[str]:
    """Return every command. A story replaces the words in capitals."""
    return list(_COMMANDS)


def template_of(line: str) -> str:
    """Return the command of a line of a story. Raises `UnknownCommandError`."""
    for template, pattern in _PATTERN_OF.items():
        if pattern.fullmatch(line) is not None:
            return template
    raise UnknownCommandError(f"{line!r} is no command; tests/scenarios/README.md lists them")


# --- the cast ---


def _cluster(stage: Stage, hosts: str, bundles: str) -> None:
    _brokers(stage, hosts)
    _create(stage, NAMESPACE, bundles, "admin")
    stage.settle()
    stage.take_lines()
    _show_bundles(stage)


def _brokers(stage: Stage, hosts: str) -> None:
    for name in hosts.split():
        stage.start(name)
        stage.settle()


def _program(stage: Stage, name: str, patterns: str) -> None:
    stage.host(name).namespaces = tuple(patterns.split())


def _crash(stage: Stage, name: str) -> None:
    stage.crash(name)


def _restart(stage: Stage, name: str, *, keeps: str = "directory") -> None:
    if stage.hosts[name].process is not None:
        stage.crash(name)
    if keeps == "nothing":
        stage.lose_directory(name)
    elif keeps == "directory":
        stage.hosts[name].directory.snapshot = None
    stage.start(name)


def _pause(stage: Stage, name: str) -> None:
    stage.process(name).paused = True


def _resume(stage: Stage, name: str) -> None:
    process = stage.process(name)
    process.paused = False
    process.take_events()
    process.deliver(Tick())


def _service(stage: Stage, name: str, mood: str, operation: str) -> None:
    stage.process(name).service.moods[operation] = mood


def _service_is_well(stage: Stage, name: str) -> None:
    stage.process(name).service.moods.clear()


def _service_answers(stage: Stage, name: str) -> None:
    stage.process(name).service.go_on()


# --- the log, and the way to it ---


def _link(stage: Stage, who: str) -> Link:
    return stage.admin if who == "admin" else stage.host(who).link


def _hold(stage: Stage, who: str) -> None:
    _link(stage, who).is_held = True


def _release(stage: Stage, who: str) -> None:
    stage.release(_link(stage, who))


def _deliver(stage: Stage, count: str, who: str) -> None:
    stage.deliver(_link(stage, who), int(count))


def _deliver_newest(stage: Stage, who: str) -> None:
    link = _link(stage, who)
    link.in_flight.rotate(1)
    stage.deliver(link, 1)


def _lose(stage: Stage, who: str, *, noticed: bool) -> None:
    stage.lose(_link(stage, who), noticed=noticed)


def _deafen(stage: Stage, name: str, *, deaf: bool) -> None:
    stage.hosts[name].is_deaf = deaf


def _outage(stage: Stage, *, out: bool) -> None:
    stage.log_is_out = out


def _wall(stage: Stage, name: str, duration: str, *, sign: int) -> None:
    stage.hosts[name].skew_ms += sign * duration_ms(duration)


# --- what people want ---


def _reason(who: str) -> str:
    return "operator" if who == "admin" else "load"


def _ask(stage: Stage, intent: Intent, who: str) -> None:
    """Let a broker propose `intent`, or an admin, who proposes the same record under another
    name.
    """
    if who != "admin":
        stage.ask(who, intent)
        return
    make = record_of(stage.view, intent)
    if isinstance(make, Verdict):
        stage.say(f"admin:ops is told: {make.reason}{', ' + make.problem if make.problem else ''}")
    else:
        stage.propose(make)


def _assign(stage: Stage, bundle: str, broker: str) -> None:
    owner = stage.view.brokers[broker].incarnation
    stage.propose(
        partial(
            propose.assign,
            bundle=stage.view.bundles[full_name(bundle)],
            owner=owner,
            reason=_reason("admin"),
        )
    )


def _transfer(stage: Stage, bundle: str, broker: str, who: str) -> None:
    _ask(stage, Transfer(bundle=full_name(bundle), destination=broker, reason=_reason(who)), who)


def _unload(stage: Stage, bundle: str, who: str) -> None:
    _ask(stage, Unload(bundle=full_name(bundle), reason=_reason(who)), who)


def _cancel(stage: Stage, bundle: str) -> None:
    stage.propose(
        partial(
            propose.cancel, bundle=stage.view.bundles[full_name(bundle)], reason=_reason("admin")
        )
    )


def _split(stage: Stage, bundle: str, who: str) -> None:
    _ask(
        stage,
        SplitBundle(bundle=full_name(bundle), algorithm=RANGE_EQUALLY_DIVIDE, reason=_reason(who)),
        who,
    )


def _split_at(stage: Stage, bundle: str, digits: str, who: str) -> None:
    cuts = (point(digits),)
    _ask(
        stage,
        SplitBundle(
            bundle=full_name(bundle),
            algorithm=SPECIFIED_POSITIONS_DIVIDE,
            positions=cuts,
            reason=_reason(who),
        ),
        who,
    )


def _merge(stage: Stage, bundle: str, who: str) -> None:
    _ask(stage, MergeBundles(left=full_name(bundle), reason=_reason(who)), who)


def _create(stage: Stage, name: str, bundles: str, who: str) -> None:
    _ask(stage, CreateNamespace(name=name, boundaries=even_boundaries(int(bundles))), who)


def _policy(stage: Stage, name: str, policy: str, value: str, who: str) -> None:
    _ask(stage, SetPolicy(name=name, policy=policy, value=value), who)


def _maintenance(stage: Stage, broker: str, duration: str, who: str) -> None:
    document = control_document(
        "new disks", until_ms=stage.process(broker).now().wall_ms + duration_ms(duration)
    )
    _ask(stage, SetClusterPolicy(policy=f"{MAINTENANCE}/{broker}", document=document), who)


def _maintenance_over(stage: Stage, broker: str, who: str) -> None:
    _ask(stage, SetClusterPolicy(policy=f"{MAINTENANCE}/{broker}", document=None), who)


def _deleting(stage: Stage, name: str, who: str) -> None:
    _ask(stage, StartDeletingNamespace(name=name), who)


def _delete(stage: Stage, name: str, who: str) -> None:
    _ask(stage, DeleteNamespace(name=name), who)


def _undrain(stage: Stage, name: str) -> None:
    stage.process(name).deliver(UndrainRequested())


def _drain(stage: Stage, name: str, *, leave: bool) -> None:
    process = stage.process(name)
    process.deliver(DrainRequested(leave=leave, deadline_ms=process.now().boot_ms + _DRAIN_MS))


def _declare_dead(stage: Stage, name: str, *, proven: bool) -> None:
    host = stage.hosts[name]
    instance_id = next(reversed(host.directory.instance_ids), None) if proven else None
    stage.propose(
        partial(propose.down, broker=stage.view.brokers[host.broker], instance_id=instance_id)
    )


def _look_up(stage: Stage, bundle: str, name: str) -> None:
    process = stage.process(name)
    if process.agent.view.bundles[full_name(bundle)].phase == "free":
        process.deliver(Wanted(bundle=full_name(bundle)))
        stage.settle()
    stage.say(f"{name} {_answer(process, process.agent.view.bundles[full_name(bundle)])}")


def _answer(process: Process, bundle: BundleEntry) -> str:
    """Return the answer to a lookup (section 8 of the protocol), as `brokers.runtime.worker` gives
    it.
    """
    agent, now = process.agent, process.host.now()
    server = server_of(agent.view, bundle)
    if server is not None and goes_on(agent, bundle.namespace, now):
        return f"sends the caller to {server.broker}, although it has lost the channel"
    if not agent.lease.good(now):
        return "lets the caller wait: it has no lease, and may know nothing of what happens"
    if server is None:
        return f"lets the caller wait: {bundle.name} is {bundle.state}"
    if agent.is_suspect(server, now, log_is_readable=True):
        return f"lets the caller wait: {server.broker} is late with its renewal"
    return (
        "sends the caller to"
        f" {server.broker}{'' if agent.out_of_touch_ms(now) is None else ', although it has lost the channel'}"  # noqa: E501
    )


# --- what there is to see ---


def _show_bundles(stage: Stage) -> None:
    for bundle in stage.view.bundles.values():
        stage.say(story.standing(bundle, stage.names))


def _show_brokers(stage: Stage) -> None:
    leader = stage.view.leader()
    for broker in sorted(stage.view.brokers.values(), key=lambda broker: broker.incarnation):
        leads = ", leads" if broker is leader else ""
        stage.say(f"{stage.names.of(broker.incarnation)} {_STANDING[broker.status]}{leads}")


def _show_handles(stage: Stage) -> None:
    for host in stage.hosts.values():
        for handle in [] if host.process is None else host.process.agent.handles.values():
            stage.say(
                f"{host.name} has {handle.bundle} under token {handle.token}:"
                f" {_passing(handle, host.process)}"
            )


def _passing(handle: Handle, process: Process | None) -> str:
    assert process is not None
    now = process.host.now()
    if handle.passes(now) and not handle.lease.good(now):
        return "serves on, although its lease is not good"
    if handle.passes(now):
        return f"serves, for {handle.lease.left_ms(now)} ms more"
    return (
        "serves nothing, its lease is not good"
        if handle.is_open
        else "serves nothing, it is not open"
    )


def _show_log(stage: Stage) -> None:
    for record in stage.records:
        for line in record.splitlines():
            stage.say(line)


_COMMANDS: Final[Mapping[str, Callable[..., None]]] = {
    "cluster HOSTS with COUNT bundles": _cluster,
    "brokers HOSTS": _brokers,
    "start HOST as BROKER": lambda stage, name, broker: stage.start(name, broker=broker),
    "program of HOST serves PATTERNS": _program,
    "crash HOST": _crash,
    "restart HOST with directory": _restart,
    "restart HOST with lost directory": partial(_restart, keeps="nothing"),
    "restart HOST from snapshot": partial(_restart, keeps="snapshot"),
    "snapshot HOST": Stage.take_snapshot,
    "corrupt BUNDLE at HOST": lambda stage, bundle, name: stage.corrupt(name, full_name(bundle)),
    "pause HOST": _pause,
    "resume HOST": _resume,
    "service HOST MOOD OPERATION": _service,
    "service HOST is well": _service_is_well,
    "service HOST answers": _service_answers,
    "timing SETTING DURATION": lambda stage, setting, duration: stage.set_timing(
        setting, duration_ms(duration)
    ),
    "advance DURATION": lambda stage, duration: stage.advance(duration_ms(duration)),
    "hold WHO": _hold,
    "release WHO": _release,
    "deliver COUNT of WHO": _deliver,
    "deliver newest of WHO": _deliver_newest,
    "lose WHO": partial(_lose, noticed=False),
    "fail WHO": partial(_lose, noticed=True),
    "doubt WHO": lambda stage, who: stage.doubt(_link(stage, who)),
    "duplicate OFFSET": lambda stage, offset: stage.duplicate(int(offset)),
    "leap COUNT offsets": lambda stage, offsets: stage.log.skip(int(offsets)),
    "deafen HOST": partial(_deafen, deaf=True),
    "undeafen HOST": partial(_deafen, deaf=False),
    "resync HOST": lambda stage, name: stage.resync(stage.process(name)),
    "outage": partial(_outage, out=True),
    "outage over": partial(_outage, out=False),
    "wall clock HOST ahead DURATION": partial(_wall, sign=1),
    "wall clock HOST back DURATION": partial(_wall, sign=-1),
    "assign BUNDLE to BROKER by admin": _assign,
    "transfer BUNDLE to BROKER by WHO": _transfer,
    "unload BUNDLE by WHO": _unload,
    "cancel BUNDLE by admin": _cancel,
    "split BUNDLE by WHO": _split,
    "split BUNDLE at DIGITS by WHO": _split_at,
    "merge BUNDLE by WHO": _merge,
    "namespace NAME with COUNT bundles by WHO": _create,
    "policy NAME POLICY VALUE by WHO": _policy,
    "maintenance of BROKER for DURATION by WHO": _maintenance,
    "maintenance of BROKER over by WHO": _maintenance_over,
    "deleting NAME by WHO": _deleting,
    "delete NAME by WHO": _delete,
    "drain HOST": partial(_drain, leave=False),
    "leave HOST": partial(_drain, leave=True),
    "undrain HOST": _undrain,
    "declare dead HOST": partial(_declare_dead, proven=True),
    "declare dead HOST without proof": partial(_declare_dead, proven=False),
    "lookup BUNDLE at HOST": _look_up,
    "show bundles": _show_bundles,
    "show brokers": _show_brokers,
    "show handles": _show_handles,
    "show log": _show_log,
}


def _pattern(template: str) -> re.Pattern[str]:
    words = [
        f"({_PATTERNS[word]})" if word in _PATTERNS else re.escape(word)
        for word in template.split()
    ]
    return re.compile(" ".join(words).replace("bundles", "bundles?"))


_PATTERN_OF: Final = {template: _pattern(template) for template in _COMMANDS}
