"""Compute the audit's verdict on a record, where no bundle's state is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from equipoise.spark_jobs.rules import forms
from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.rules.membership.members import FIRST_LEVEL, LIVE, Known, Member
from equipoise.spark_jobs.rules.ranges import is_broker_id, is_namespace, whole_space
from equipoise.spark_jobs.rules.rule import ACCEPTED

ADMIN_WINDOW_OFFSETS: Final = 10_000
"""How many offsets an admin's view may be behind its record."""


Envelope = tuple[str, int, int]
"""Publisher, incarnation and sequence of a broker's record."""


def envelope_of(raw: Raw | None) -> Envelope | None:
    """Return the envelope of a broker's record, however malformed the rest is; None if
    unreadable.
    """
    if raw is None:
        return None
    publisher, incarnation, sequence = (
        raw.get("publisher"),
        raw.get("incarnation"),
        raw.get("sequence"),
    )
    if (
        not forms.is_key(publisher)
        or not forms.is_integer(incarnation)
        or not forms.is_integer(sequence)
    ):
        return None
    return None if publisher.startswith(forms.ADMIN) else (publisher, incarnation, sequence)


def verdict_before_content(
    known: Known, offset: int, raw: Raw | None, envelope: Envelope | None, *, is_well_formed: bool
) -> str | None:
    """Return the verdict by publisher, attempt and format version; None if the content decides.
    `envelope` is that of `raw`.
    """
    form = forms.form_of(raw) if raw is not None and is_well_formed else None
    if form == "genesis":
        return None
    if known.whole.genesis is None:
        return "no_genesis"
    if form == "broker joined":
        return None
    if envelope is not None:
        publisher, incarnation, sequence = envelope
        if known.live.get(incarnation) != publisher:
            return "dead_publisher"
        if sequence <= known.brokers[publisher].sequence:
            return "late"
    elif raw is not None and is_well_formed:
        if offset - raw["as_of"] > ADMIN_WINDOW_OFFSETS:
            return "late"
        if raw["as_of"] >= offset:
            return "malformed"
    level = (raw or {}).get("level")
    if forms.is_integer(level) and level > known.whole.level:
        return "level"
    return None if is_well_formed else "malformed"


def verdict_on(known: Known, raw: Raw) -> str | None:
    """Return the verdict on the content of a well-formed record; None if it depends on bundles."""
    return _VERDICTS[raw["kind"]](known, raw)


def _on_bundle(_known: Known, _raw: Raw) -> None:
    """Return None: only the bundle's own state decides."""


def _on_genesis(known: Known, raw: Raw) -> str:
    whole = known.whole
    if whole.genesis is None:
        return ACCEPTED
    if raw["cluster"] != whole.cluster:
        return "foreign_genesis"
    # Only the first record of a copied log is a valid second genesis: it continues above the old
    # log's end, at the same format version.
    is_of_copy = (
        whole.genesis <= whole.base == (raw.get("base") or 0)
        and (raw.get("level") or FIRST_LEVEL) == whole.level
    )
    return ACCEPTED if is_of_copy else "stale"


def _on_level(known: Known, raw: Raw) -> str:
    whole, raises_to = known.whole, raw["raises_to"]
    if raw["expected_offset"] != whole.level_last:
        return "stale"
    if raises_to <= whole.level:
        return "illegal_transition"
    ready = all(known.brokers[name].supported_level >= raises_to for name in known.live.values())
    return ACCEPTED if ready else "level"


def _on_policy(known: Known, raw: Raw) -> str:
    last = known.policies.get(raw["key"])
    if raw["expected_offset"] != (known.whole.removed_at if last is None else last):
        return "stale"
    return "unknown_policy" if last is None and raw["status"] == "removed" else ACCEPTED


def _on_namespace(known: Known, raw: Raw) -> str | None:
    entry, status = known.namespaces.get(raw["key"]), raw["status"]
    if raw["expected_offset"] != (known.whole.removed_at if entry is None else entry.last):
        return "stale"
    if status == "created":
        if entry is not None:
            return "illegal_transition"
        if not is_namespace(raw["key"]):
            return "malformed"
        return ACCEPTED if whole_space(raw.get("boundaries") or ()) else "bad_boundary"
    if entry is None:
        return "unknown_namespace"
    is_deleting = entry.status == "deleting"
    if status == "deleted":
        return None if is_deleting else "illegal_transition"  # The state of its bundles decides.
    return "illegal_transition" if is_deleting else ACCEPTED


def _on_broker(known: Known, raw: Raw) -> str:
    member, status = known.brokers.get(raw["key"]), raw["status"]
    if status == "joined":
        return _on_joining(known, raw, member)
    if raw["expected_offset"] != (known.whole.removed_at if member is None else member.last):
        return "stale"
    if member is None:
        return "unknown_broker"
    is_live, is_own = member.status in LIVE, raw["publisher"] == raw["key"]
    is_admin = raw.get("incarnation") is None
    if status == "renewed":
        return ACCEPTED if is_own else "not_the_actor"
    if status == "down":
        if not is_live:
            return "illegal_transition"
        if is_own:
            return "not_the_actor"
        proof = raw.get("instance_id")
        if proof is None and not is_admin:  # It was silent.
            return ACCEPTED
        return ACCEPTED if proof == member.instance_id else "still_alive"
    if status == "removed":
        return "not_the_actor" if is_admin else "still_alive" if is_live else ACCEPTED
    if not is_own:
        return "not_the_actor"
    return "illegal_transition" if status == member.status else ACCEPTED


def _on_joining(known: Known, raw: Raw, member: Member | None) -> str:
    level = known.whole.level
    if (raw.get("level") or FIRST_LEVEL) > level or (
        raw.get("supported_level") or FIRST_LEVEL
    ) < level:
        return "level"
    is_live = member is not None and member.status in LIVE
    if (
        is_live
        and raw.get("after_silence") is not True
        and raw.get("replaces") != (member and member.instance_id)
    ):
        return "still_alive"
    if raw["expected_offset"] != (known.whole.removed_at if member is None else member.last):
        return "stale"
    return ACCEPTED if is_broker_id(raw["key"]) else "malformed"


_VERDICTS: Final[Mapping[str, Callable[[Known, Raw], str | None]]] = {
    "genesis": _on_genesis,
    "bundle": _on_bundle,
    "split": _on_bundle,
    "merge": _on_bundle,
    "namespace": _on_namespace,
    "broker": _on_broker,
    "policy": _on_policy,
    "level": _on_level,
}
