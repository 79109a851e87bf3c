"""The mutants apply to the product as it stands, and the hunt for them catches what is broken and
nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import HUNTS, hunt, mutants_of, product_texts
from tests.mutants.patching import Hunk, Mutant, PatchDoesNotApplyError, apply, parse
from tests.simulation.scenario import SCENARIOS

MUTANTS_MIN = 20
MUTANTS = mutants_of(Path(__file__).parent)
PATCH = """A rule is broken.
Scenario: heavy

--- a/one.py
+++ b/one.py
@@
 first
-second
+another
 third
@@
-last
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies(mutant: Mutant) -> None:
    """Each patch finds its text in the product, and names a scenario that there is."""
    texts = product_texts()
    changed = apply(mutant, texts)
    assert [] == [path for path, text in changed.items() if text == texts[path]]
    assert mutant.scenario in {*SCENARIOS, *HUNTS}


def test_the_hunts_for_other_mutants_have_names_of_their_own() -> None:
    """Under one name a scenario of the simulation would never be simulated, and its mutants pass
    for tests that nobody ran.
    """
    assert not HUNTS.keys() & SCENARIOS.keys()


def test_there_are_enough_mutants() -> None:
    """At least twenty rules are shown to be needed."""
    assert len(MUTANTS) >= MUTANTS_MIN


def test_a_patch_is_read_and_applied() -> None:
    mutant = parse("01-rule", PATCH)
    assert mutant == Mutant(
        name="01-rule",
        rule="A rule is broken.",
        scenario="heavy",
        hunks=(
            Hunk(path="one.py", before="first\nsecond\nthird\n", after="first\nanother\nthird\n"),
            Hunk(path="one.py", before="last\n", after=""),
        ),
    )
    changed = apply(mutant, {"one.py": "zeroth\nfirst\nsecond\nthird\nfourth\nlast\n"})
    assert {"one.py": "zeroth\nfirst\nanother\nthird\nfourth\n"} == changed


@pytest.mark.parametrize("text", ["first\nthird\nlast\n", "first\nsecond\nthird\n" * 2 + "last\n"])
def test_a_patch_whose_text_is_not_there_once_does_not_apply(text: str) -> None:
    with pytest.raises(PatchDoesNotApplyError, match="times in"):
        apply(parse("01-rule", PATCH), {"one.py": text})


@pytest.mark.parametrize("text", ["", PATCH.replace("Scenario: ", ""), PATCH.partition("---")[0]])
def test_what_is_no_patch_is_refused(text: str) -> None:
    with pytest.raises(PatchDoesNotApplyError):
        parse("01-rule", text)


def test_a_broken_rule_is_caught() -> None:
    """The hunt runs the copy, not the product, and a checker finds what is broken in it."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name.endswith("split-leaves-a-hole")]
    result = hunt(mutant, product_texts())
    assert result.caught
    assert ": 2 coverage: " in result.how


HARMLESS = Hunk(
    path="channel/core/ranges.py",
    before="BUNDLES_MAX: Final = 65_536",
    after="BUNDLES_MAX: Final = 2**16",
)
CRASH = Hunk(
    path="channel/core/view.py",
    before="    view.offset = offset\n    kind",
    after="    view.offset = offset.nothing\n    kind",
)


@pytest.mark.parametrize(
    ("hunk", "how"),
    [(HARMLESS, "NOT CAUGHT by 2 seeds"), (CRASH, "CRASHED")],
    ids=["harmless", "crash"],
)
def test_only_a_broken_rule_counts_as_caught(hunk: Hunk, how: str) -> None:
    """Neither a change that breaks nothing, nor an agent that crashes."""
    mutant = Mutant(name="x", rule="None.", scenario="three-brokers", hunks=(hunk,))
    result = hunt(mutant, product_texts(), seeds_max=2)
    assert not result.caught
    assert result.how.startswith(how)
