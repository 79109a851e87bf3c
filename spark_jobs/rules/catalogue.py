"""List every rule of the audit as data: its subject, what a violation means, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final, Literal

from equipoise.spark_jobs.rules.facts import Fact, SubjectKind
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.ranges import parse_bundle

Severity = Literal["alarm", "warning", "notice"]
"""`alarm`: a promise was broken, or an unauthorised process writes. `warning`: look at it today. `notice`: good to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `says` states the rule, `means` the consequence of a violation, `remedy` what to do."""

    name: str
    subject: SubjectKind
    severity: Severity
    says: str
    means: str
    remedy: str


_STOP_THE_WRITER: Final = "Find out who wrote the record, and stop that process. Ask each broker for its version."
_FOLD_AGAIN: Final = "Run `equipoise channel verify`. Keep the log as it is, and report the two verdicts as a bug."
_ASK_THE_BROKER: Final = "Look at the log lines and the clock of the broker that is named."
_CLOSE_THE_LOG: Final = "Find out who can write to the log, and take the right from whoever needs it not."

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="verdict_differs",
        subject="log",
        severity="alarm",
        says="The fold and the second rules come to one verdict on each record.",
        means="One of them is wrong: brokers of another version may disagree about who owns what.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="state_differs",
        subject="bundle",
        severity="alarm",
        says="A record makes of a bundle or a namespace what the second rules make of it.",
        means="The fold changed something that the record does not change, or not as the table says.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="illegal_step",
        subject="bundle",
        severity="alarm",
        says="A bundle goes from one phase to the next by a row of the table.",
        means="A step was accepted that the table does not have: a bundle may have two owners, or none for ever.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="wrong_actor",
        subject="bundle",
        severity="alarm",
        says="Only whom the table names may propose a step.",
        means="Somebody spoke for a broker that did not speak: it may serve what the log says it gave away.",
        remedy=_STOP_THE_WRITER,
    ),
    Rule(
        name="unfit_target",
        subject="bundle",
        severity="alarm",
        says="A bundle is given to a live broker that does not drain, and while its namespace is not being deleted.",
        means="A bundle waits for a broker that will not open it, or a namespace that is to go cannot.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="stale_accepted",
        subject="bundle",
        severity="alarm",
        says="A record is accepted only if nothing changed its key since what it is based on.",
        means="A race was won twice: what one broker decided was undone by another who had not read it.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="token_fell",
        subject="bundle",
        severity="alarm",
        says="The fencing tokens of a point of the hash space only rise.",
        means="A store that checks tokens may refuse the owner, or take what a former owner writes.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="token_not_renewed",
        subject="bundle",
        severity="alarm",
        says="Each new ownership has a token of its own: the offset of the record that began it.",
        means="The former owner and the new one have the same token, so that no store can tell them apart.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="intervals_overlap",
        subject="bundle",
        severity="alarm",
        says="A bundle has a new server only after the one before said that it closed, or is dead.",
        means="Two brokers served the bundle at once, as far as the log tells.",
        remedy="Look at what both brokers wrote to their stores from that record on.",
    ),
    Rule(
        name="hole",
        subject="namespace",
        severity="alarm",
        says="The bundles of a namespace leave no point of the hash space out.",
        means="Keys of that range have no bundle, and lookups of them never end.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="overlap",
        subject="namespace",
        severity="alarm",
        says="No point of the hash space lies in two bundles of a namespace.",
        means="Keys of that range may have two owners at once.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="death_left_bundle",
        subject="bundle",
        severity="alarm",
        says="The record of a death changes all bundles that the dead incarnation is part of.",
        means="A bundle belongs to a dead broker, and nobody will place it.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="premature_down",
        subject="broker",
        severity="alarm",
        says="A broker is declared down only after its lease and margin have passed without a word of it.",
        means="A broker that still held its lease lost its bundles: two may have served at once.",
        remedy="Look at the log lines and the clock of the broker that wrote the record.",
    ),
    Rule(
        name="false_proof",
        subject="broker",
        severity="alarm",
        says="An admin declares a broker down only with the nonce of its live incarnation.",
        means="Somebody declared a broker down without having its data directory: it may still serve.",
        remedy=_CLOSE_THE_LOG,
    ),
    Rule(
        name="premature_join",
        subject="broker",
        severity="alarm",
        says="A broker joins over its own live incarnation only with that one's nonce, or after its lease and margin passed.",
        means="Two processes of one broker id may serve at once.",
        remedy="See whether two processes run with this broker's id, and stop one.",
    ),
    Rule(
        name="digest_differs",
        subject="broker",
        severity="alarm",
        says="The digest that a broker writes with its renewal is that of the view which the log gives.",
        means="The broker sees another state than the others: its view is damaged, or its version has other rules.",
        remedy="Restart the broker, so that it folds again; if it differs again, compare versions.",
    ),
    Rule(
        name="sequence_reused",
        subject="broker",
        severity="alarm",
        says="An incarnation gives each of its attempts a number of its own.",
        means="Two processes write as one incarnation, or one record was forged.",
        remedy=_CLOSE_THE_LOG,
    ),
    Rule(
        name="sequence_fell",
        subject="broker",
        severity="alarm",
        says="A record is accepted only if its number lies above all that its incarnation wrote before.",
        means="An attempt that was given up came through after all.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="baseless",
        subject="log",
        severity="warning",
        says="A record speaks of what was on the log before it.",
        means="Whoever wrote it refers to what never was there: it is forged, or meant for another log.",
        remedy=_CLOSE_THE_LOG,
    ),
    Rule(
        name="writes_what_it_may_not",
        subject="broker",
        severity="warning",
        says="A broker does not propose what the table leaves to others.",
        means="The broker has a defect, or somebody writes in its name.",
        remedy=_ASK_THE_BROKER,
    ),
    Rule(
        name="too_many_rejections",
        subject="broker",
        severity="warning",
        says="Rejected records stay few, by reason and publisher.",
        means="A publisher repeats what cannot succeed, and fills the log with it.",
        remedy=_ASK_THE_BROKER,
    ),
    Rule(
        name="malformed",
        subject="log",
        severity="warning",
        says="What stands on the log is a record.",
        means="Somebody writes to the log who does not know its form, or what is stored was damaged.",
        remedy=_CLOSE_THE_LOG,
    ),
    Rule(
        name="unreadable_note",
        subject="log",
        severity="warning",
        says="What stands beside the log, of decisions, loads and what brokers serve, can be read.",
        means="Somebody writes there who does not know its form, or what is stored was damaged: of what it should tell nothing is judged.",
        remedy="Look at that offset of the topic or table that is named, and find out who wrote it.",
    ),
    Rule(
        name="above_level",
        subject="log",
        severity="warning",
        says="No record needs rules above the level that is in force.",
        means="A version wrote it that the cluster was not raised to.",
        remedy="Raise the level once all brokers support it, or bring back the version that wrote it.",
    ),
    Rule(
        name="level_raised_early",
        subject="log",
        severity="alarm",
        says="The level is raised once every live broker supports it.",
        means="A live broker does not know the rules that are now in force.",
        remedy="Bring that broker to a version which supports the level.",
    ),
    Rule(
        name="foreign_genesis",
        subject="log",
        severity="alarm",
        says="A log belongs to one cluster.",
        means="A broker of another cluster was started with this log.",
        remedy="Give the other cluster a log of its own.",
    ),
    Rule(
        name="genesis_twice",
        subject="log",
        severity="warning",
        says="A log begins once.",
        means="Somebody began a log again that stood already.",
        remedy=_CLOSE_THE_LOG,
    ),
    Rule(
        name="stuck_in_flight",
        subject="bundle",
        severity="warning",
        says="A bundle that is on its way arrives, or is cancelled, within the bound; one that is free has an owner within five times "
        "that, while a broker is up that may take it.",
        means="Clients of the bundle may wait, and nobody steps in.",
        remedy="See whether its brokers answer; `equipoise bundles cancel` cancels a transfer. What stays free is refused by all who are "
        "asked, or the policies leave nobody for it.",
    ),
    Rule(
        name="deleting_too_long",
        subject="namespace",
        severity="warning",
        says="A namespace that is being deleted is gone within five times the bound for a bundle on its way.",
        means="Who deleted it was cut off: its bundles are given to nobody any more, and its name is taken.",
        remedy="Run `equipoise namespaces delete` of it again, which goes on where it stopped.",
    ),
    Rule(
        name="silent_too_long",
        subject="broker",
        severity="warning",
        says="A broker that has fallen silent is declared down by another, as long as anybody writes: time is that of the log.",
        means="Its bundles are with nobody: the others do not notice.",
        remedy="See whether any broker is alive, and look at its log lines.",
    ),
    Rule(
        name="dead_publisher_accepted",
        subject="broker",
        severity="alarm",
        says="Nothing is accepted of an incarnation that is dead.",
        means="A broker changed the state after its death: what it decided is not what the others know.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="namespace_deleted_in_use",
        subject="namespace",
        severity="alarm",
        says="A namespace is deleted only after it was set to deleting, and all its bundles are free.",
        means="A broker serves bundles that no longer exist.",
        remedy=_FOLD_AGAIN,
    ),
    Rule(
        name="records_lost",
        subject="log",
        severity="warning",
        says="The audit reads each record.",
        means="The log was truncated, or lost records, before the audit read so far: of what records there were nothing is known.",
        remedy="Let the audit run all the time, or let the channel keep more.",
    ),
    Rule(
        name="time_fell",
        subject="log",
        severity="notice",
        says="The time of the log does not fall.",
        means="The clock of the log's machine was set back, or had been ahead: leases are not harmed, but the log's time stands still "
        "until the clock has come there again, and till then nothing is found that takes time.",
        remedy="See to the clock of the machine that stores the log.",
    ),
    Rule(
        name="time_leapt",
        subject="log",
        severity="notice",
        says="The time of the log does not leap ahead of all clocks.",
        means="One entry bore a time that had not come, and the log's time stands still until it has: till then what is stuck, silent or "
        "repeated too often is not found.",
        remedy="See to the clock of the machine that stores the log. If the time lies too far ahead to be waited for, copy the channel "
        "to another log, and audit that one.",
    ),
    Rule(
        name="log_closed",
        subject="log",
        severity="notice",
        says="The channel goes on in the log that is audited.",
        means="The log was closed for good when its channel was copied to another one: nothing comes any more that could be judged.",
        remedy="Audit the log that the finding names, with an archive of its own.",
    ),
    Rule(
        name="folding_stopped",
        subject="log",
        severity="alarm",
        says="The audit can fold the log to its end.",
        means="Nothing that comes after is audited: the log was put back or replaced, is above our level, or its head is gone.",
        remedy="Read what the finding says; audit the log that is meant anew, with an archive of its own, or with a newer version.",
    ),
    Rule(
        name="audit_broken",
        subject="log",
        severity="warning",
        says="The audit itself can judge each record.",
        means="A check failed on this record, and what was known of its subject is forgotten.",
        remedy="Report it as a bug, with the record.",
    ),
    Rule(
        name="served_without_ownership",
        subject="bundle",
        severity="alarm",
        says="A broker serves a bundle only in an ownership that the log gave it.",
        means="A broker served what was not its own.",
        remedy=_ASK_THE_BROKER,
    ),
    Rule(
        name="served_two_at_once",
        subject="bundle",
        severity="alarm",
        says="No two brokers serve a bundle at one time.",
        means="What one wrote may have been lost by the other, where the store does not check tokens.",
        remedy="Compare what both brokers wrote to their stores at that time.",
    ),
    Rule(
        name="served_past_lease",
        subject="bundle",
        severity="alarm",
        says="A broker serves nothing past its lease.",
        means="Another may have owned the bundle by then.",
        remedy=_ASK_THE_BROKER,
    ),
    Rule(
        name="served_old_token",
        subject="bundle",
        severity="alarm",
        says="A broker serves with the token of the present ownership.",
        means="A store that checks tokens refuses it; one that does not is written by two.",
        remedy=_ASK_THE_BROKER,
    ),
    Rule(
        name="served_before_owned",
        subject="bundle",
        severity="alarm",
        says="A broker serves a bundle only once the record that gives it stands on the log.",
        means="The owner before may have served it too.",
        remedy=_ASK_THE_BROKER,
    ),
)

_SHOWN_BY_VERIFY: Final = frozenset({"records_lost"})  # There is no record to show.

_SHOWN_TOGETHER: Final = frozenset({"sequence_reused"})

BY_NAME: Final[Mapping[str, Rule]] = {rule.name: rule for rule in RULES}


def finding(rule: str, fact: Fact, text: str, *, offsets: tuple[int, ...] | None = None) -> Finding:
    """Return a finding about the subject of `fact`. `offsets` are rising; default: the fact's own.

    Raise `KeyError` for an unknown rule.
    """
    publisher = (fact.record or {}).get("publisher")
    return found(
        rule,
        fact.subject,
        text,
        offsets=(fact.offset,) if offsets is None else offsets,
        at_ms=fact.at_ms,
        publisher=publisher if type(publisher) is str else None,
    )


def found(rule: str, subject: str, text: str, *, offsets: tuple[int, ...], at_ms: int, publisher: str | None = None) -> Finding:
    """Return a finding about `subject` at the last of `offsets`, with the command that shows it.

    Raise `KeyError` for an unknown rule.
    """
    return Finding(
        rule=BY_NAME[rule].name,
        subject=subject,
        offsets=offsets,
        at_ms=at_ms,
        text=text,
        command=command(rule, subject, offsets),
        publisher=publisher,
    )


def command(rule: str, subject: str, offsets: Sequence[int]) -> str:
    """Return the command that shows a finding.

    * Records are lost: verify the log.
    * A bundle: show its history.
    * One of two records is forged: show both.
    * Otherwise: show the last record.

    The command contains `{log}` for the log's URL. The rest is quoted for a shell and may contain braces: insert the URL with
    `str.replace`, never with `str.format`.
    """
    kind, _, name = subject.partition(":")
    if rule in _SHOWN_BY_VERIFY:
        return "equipoise channel verify --log {log}"
    if kind == "bundle" and parse_bundle(name) is not None:
        return f"equipoise channel why {quote(name)} --log {{log}}"
    shown = offsets if rule in _SHOWN_TOGETHER else offsets[-1:]
    return " && ".join(f"equipoise channel show {offset} --log {{log}}" for offset in shown)
