"""Patches of mutants: reading them, and applying them to the text of the product.

A hunk is found by its text, never by line numbers, so that a patch goes on applying
while the module around it changes; where its text is gone, or stands twice, it no longer applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class PatchDoesNotApplyError(Exception):
    """A patch that is no patch, or whose text is not in the product exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """In the file `path`, `before` is to be replaced by `after`."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken rule: `rule` says which, `scenario` is the one of `tests.simulation` that shows
    it.
    """

    name: str
    rule: str
    scenario: str
    hunks: tuple[Hunk, ...]


def parse(name: str, text: str) -> Mutant:
    """Read a patch: the broken rule, a line `Scenario: NAME`, an empty line, and a unified diff."""
    header, _, diff = text.partition("\n\n")
    lines = header.splitlines() or [""]
    scenario = lines[-1].removeprefix("Scenario: ")
    if len(lines) < 2 or scenario == lines[-1]:
        raise PatchDoesNotApplyError(
            f"{name} does not begin with the broken rule and a line 'Scenario: NAME'"
        )
    hunks = _hunks(name, diff)
    return Mutant(name=name, rule=" ".join(lines[:-1]), scenario=scenario, hunks=hunks)


def _hunks(name: str, diff: str) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    path, before, after = "", "", ""
    for line in (*diff.splitlines(keepends=True), "@@\n"):
        if line.startswith(("--- ", "+++ ", "@@")):
            if before != after:
                hunks.append(Hunk(path=path, before=before, after=after))
            before = after = ""
            path = line.split()[1].removeprefix("b/") if line.startswith("+++ ") else path
        elif line.startswith("-"):
            before += line[1:]
        elif line.startswith("+"):
            after += line[1:]
        else:
            before += line[1:] or "\n"
            after += line[1:] or "\n"
    if not hunks:
        raise PatchDoesNotApplyError(f"{name} changes nothing")
    return tuple(hunks)


def apply(mutant: Mutant, texts: Mapping[str, str]) -> dict[str, str]:
    """The files that a mutant changes, changed; raises `PatchDoesNotApplyError`."""
    changed: dict[str, str] = {}
    for hunk in mutant.hunks:
        text = changed.get(hunk.path, texts.get(hunk.path))
        if text is None:
            raise PatchDoesNotApplyError(f"{mutant.name}: there is no {hunk.path}")
        found = text.count(hunk.before)
        if found != 1:
            raise PatchDoesNotApplyError(
                f"{mutant.name}: this stands {found} times in {hunk.path}, not once:\n{hunk.before}"
            )
        changed[hunk.path] = text.replace(hunk.before, hunk.after)
    return changed
