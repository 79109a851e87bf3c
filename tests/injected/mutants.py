"""Mutants of the fold. The audit folds with one, and its own rules must name the first record on
which that differs from the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final
from unittest.mock import patch

from equipoise.channel.core import view as whole
from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, NamespaceChanged, Verdict
from equipoise.channel.core.records import AnyRecord, Merge, Unreadable
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.sequence.rows import Arrival
from tests.injected.honest import honest, play
from tests.injected.injection import Injected
from tests.mutants.patching import Mutant, parse
from tests.mutants.patching import apply as patched
from tests.simulation.scenario import SCENARIOS

_FOLD: Final = "channel/core/view.py"
_PATCHES: Final = Path(__file__).resolve().parent.parent / "mutants"

# These show only in the channel of a cluster with forgers.
_WANT_FORGERS: Final = frozenset(
    {"10-not-the-actor", "33-declare-dead-without-the-instance-id", "46-a-log-begins-twice"}
)
_FORGERS: Final = "hostile"

# Long enough for a few deaths.
_SECONDS: Final = 20

# Every rule by which the audit can contradict the fold.
CONTRADICTIONS: Final = frozenset(
    {
        "verdict_differs",
        "state_differs",
        "illegal_step",
        "wrong_actor",
        "unfit_target",
        "stale_accepted",
        "token_fell",
        "token_not_renewed",
        "intervals_overlap",
        "hole",
        "overlap",
        "death_left_bundle",
        "premature_join",
        "false_proof",
        "sequence_fell",
        "dead_publisher_accepted",
        "namespace_deleted_in_use",
        "genesis_twice",
        "digest_differs",
    }
)

Apply = Callable[[View, int, AnyRecord | Unreadable], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenFold:
    """A fold with one broken rule, and the scenario of the simulator in whose channels that
    shows.
    """

    name: str
    scenario: str
    apply: Apply


def broken_folds() -> list[BrokenFold]:
    """Return all mutants of `channel.core.view`: those in `tests/mutants`, and `_FOLDS_ONLY`."""
    mutants = [
        parse(path.stem, path.read_text(encoding="utf-8"))
        for path in sorted(_PATCHES.glob("*.patch"))
    ]
    text = _text()
    return [
        BrokenFold(name=mutant.name, scenario=mutant.scenario, apply=_module(mutant, text).apply)
        for mutant in (*mutants, *_FOLDS_ONLY)
        if {hunk.path for hunk in mutant.hunks} == {_FOLD}
    ]


@contextmanager
def folding_with(broken: BrokenFold) -> Iterator[None]:
    """Make every reader in the block fold with the broken fold."""
    with patch("equipoise.channel.core.reader.apply", broken.apply):
        yield


def injected_in(channel: list[Arrival], broken: BrokenFold) -> Injected | None:
    """Return where the verdicts of the two folds on `channel` first differ; None if they never do.

    The views may differ earlier. Then the record after which they do is a right answer, too.
    """
    view, other = View(), View()
    offsets: list[int] = []
    for arrival in channel:
        record = decode(arrival.value or b"")
        verdict, different = (
            apply(view, arrival.offset, record),
            broken.apply(other, arrival.offset, record),
        )
        shows = _shown(verdict) != _shown(different)
        if shows or (not offsets and view.digest() != other.digest()):
            offsets.append(arrival.offset)
        if shows:
            subjects = _subjects(record) | _changed(verdict) | _changed(different)
            return Injected(
                arrivals=channel,
                rules=CONTRADICTIONS,
                subjects=subjects,
                offsets=frozenset(offsets),
            )
    return None


def _shown(verdict: Verdict) -> tuple[object, ...]:
    """Return the parts of a verdict that facts show. A broker's entry changes in place, so only its
    death is compared.
    """
    changes = [
        (
            change.name,
            change.before,
            change.after if isinstance(change, BundleChanged | NamespaceChanged) else change.dead,
        )
        for change in verdict.changes
        if isinstance(change, BundleChanged | NamespaceChanged | BrokerChanged)
    ]
    return verdict.reason, changes, verdict.diverged


def _subjects(record: AnyRecord | Unreadable) -> frozenset[str]:
    named = {"log:", f"broker:{record.publisher}"}
    if not isinstance(record, Unreadable):
        named |= {f"{kind}:{record.key}" for kind in ("bundle", "broker", "namespace")}
        namespace = record.key.rpartition("/")[0]
        named.add(f"namespace:{namespace}")
    if isinstance(record, Merge):
        named.add(f"bundle:{record.right}")
    return frozenset(named)


def _changed(verdict: Verdict) -> frozenset[str]:
    return frozenset(
        f"bundle:{change.name}" for change in verdict.changes if isinstance(change, BundleChanged)
    )


def channel_for(broken: BrokenFold, seed: int) -> list[Arrival]:
    """Return a channel of the scenario in which the broken rule shows."""
    scenario = (
        SCENARIOS[_FORGERS]
        if broken.name in _WANT_FORGERS
        else honest(broken.scenario, seconds=_SECONDS)
    )
    return play(scenario, seed).channel


@cache
def _text() -> str:
    return Path(whole.__file__).read_text(encoding="utf-8")


def _module(mutant: Mutant, text: str) -> ModuleType:
    """Return a module like `channel.core.view`, with the mutant's change."""
    module = ModuleType(f"channel.view_of_{mutant.name}")
    changed = patched(mutant, {_FOLD: text})[_FOLD]
    # The project's own text, with a rule taken out.
    exec(compile(changed, module.__name__, "exec"), module.__dict__)  # noqa: S102
    return module


_FOLDS_ONLY: Final = (
    parse(
        "removals-are-forgotten",
        """A removal leaves no trace, so that a late duplicate of a create revives what was removed.
Scenario: reshaping

--- a/channel/core/view.py
+++ b/channel/core/view.py
@@
-    view.removed_at = offset
     view.scalars_changed()
""",
    ),
    parse(
        "handover-keeps-the-token",
        """The next owner serves under the token of the one before.
Scenario: ordinary

--- a/channel/core/view.py
+++ b/channel/core/view.py
@@
         last=offset,
-        token=offset if row.new_token else before.token,
+        token=before.token,
         algorithm=record.algorithm if splitting else None,
""",
    ),
    parse(
        "merge-of-two-owners",
        """Two neighbours of different owners become one bundle.
Scenario: reshaping

--- a/channel/core/view.py
+++ b/channel/core/view.py
@@
-    if left.phase != "owned" or right.phase != "owned" or left.owner != right.owner:
+    if left.phase != "owned" or right.phase != "owned":
         return _ILLEGAL
""",
    ),
    parse(
        "deleted-in-use",
        """A namespace is deleted although brokers serve its bundles.
Scenario: reshaping

--- a/channel/core/view.py
+++ b/channel/core/view.py
@@
     busy = [bundle.name for bundle in bundles if bundle.phase != "free"]
-    if busy:
+    if len(busy) > len(bundles):
         return Verdict(
""",
    ),
)
