"""Every module and every text of the project keeps the rules of the house, and each rule bites."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import PurePath
from typing import NamedTuple

import pytest

from tests.house.house_rules import (
    FOLDER_MODULES_MAX,
    LINKED,
    MODULE_RULES,
    PRODUCT,
    ROOT,
    TEXT_RULES,
    Rule,
    Source,
    finished,
    homeless,
    impartial_checker,
    is_pure,
    modules,
    no_order_from_sets,
    one_door,
    one_name,
    portable,
    pure_calls,
    pure_imports,
    rows_of_arrows,
    seeded_random,
    short_docstrings,
    telling_names,
    texts,
    way_to_impurity,
    within,
)


@pytest.mark.parametrize("rule", MODULE_RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    """Every module of the product and of the tests keeps the rules for modules."""
    assert [] == [finding for module in modules().values() for finding in rule(module)]


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_every_text_keeps_the_rule(rule: Rule) -> None:
    """Every text of the project, be it code or not, keeps the rules for texts."""
    assert [] == [finding for text in texts() for finding in rule(text)]


def test_pure_modules_reach_no_impure_one() -> None:
    """A pure module is pure with all that it imports of ours, at any distance."""
    product = {name: source for name, source in modules().items() if within(name, PRODUCT)}
    assert [] == [
        way for name in product if is_pure(name) and (way := way_to_impurity(name, product))
    ]


def test_every_module_stands_in_a_row_of_the_arrows() -> None:
    """A module that no row of the layers contract names would be free of the arrows, so there is
    none.
    """
    assert [] == homeless(modules(), rows_of_arrows())


def test_no_folder_holds_too_many_modules() -> None:
    """A folder of the product holds at most 20 modules: more of them are several packages."""
    paths = (PurePath(text.name) for text in texts())
    held = Counter(
        path.parent
        for path in paths
        if path.suffix == ".py" and path.stem != "__init__" and path.parts[0] in (*LINKED, *PRODUCT)
    )
    assert {} == {folder: count for folder, count in held.items() if count > FOLDER_MODULES_MAX}


class Bite(NamedTuple):
    """A text that breaks one rule, what the finding must name, and where the text stands."""

    rule: Rule
    text: str
    named: str
    name: str = "equipoise.channel.core.view"


A_SET_OF_A_CLASS = (
    "class A:\n    moved: frozenset[str]\n    def f(self):\n        for x in self.moved:\n         "
    "   pass"
)
BITES = (
    Bite(telling_names, "", "'utils'", name="brokers.utils.clock"),
    Bite(telling_names, "", "'base'", name="shedder.base"),
    Bite(one_door, "import confluent_kafka", "confluent_kafka", name="equipoise.channel.kafka.log"),
    Bite(one_door, "import pyspark.sql as sql", "pyspark"),
    Bite(
        one_door,
        "from tests.channels.folding import Channel",
        "imports tests",
        name="equipoise.brokers.local.local_cluster",
    ),
    Bite(
        one_name,
        "from channel.core import view",
        "import equipoise.channel",
        name="tests.unit.test_view",
    ),
    Bite(
        impartial_checker,
        "from equipoise.channel.core import view",
        "imports equipoise",
        name="tests.checker.checker",
    ),
    Bite(pure_imports, "import time", "imports time"),
    Bite(pure_imports, "from os.path import join", "imports os"),
    Bite(pure_imports, "import random", "imports random", name="equipoise.brokers.agent.leading"),
    Bite(
        pure_imports,
        "def f():\n    import sqlite3",
        "imports sqlite3",
        name="equipoise.shedder.transfer",
    ),
    Bite(
        pure_imports,
        "import random, time",
        "imports time",
        name="tests.simulation.clock",
    ),
    Bite(pure_calls, "x = hash('key')", "hash()"),
    Bite(pure_calls, "open('plan')", "open()", name="equipoise.shedder.plan"),
    Bite(
        seeded_random,
        "import random\nrandom.shuffle([])",
        "random.shuffle",
        name="tests.simulation.faults",
    ),
    Bite(
        seeded_random,
        "from random import choice",
        "more of random",
        name="tests.simulation.faults",
    ),
    Bite(no_order_from_sets, "for x in {1, 2}:\n    pass", "{1, 2}"),
    Bite(no_order_from_sets, "[x for x in set(names)]", "set(names)"),
    Bite(no_order_from_sets, "{x: 1 for x in {y for y in z}}", "for y in z"),
    Bite(no_order_from_sets, "list(frozenset(names))", "frozenset(names)"),
    Bite(no_order_from_sets, "f(*set(names))", "set(names)"),
    Bite(no_order_from_sets, "for x in a.keys() - b.keys():\n    pass", "a.keys() - b.keys()"),
    Bite(no_order_from_sets, "def f(a: set[str]):\n    return [x for x in a]", "set a"),
    Bite(
        no_order_from_sets,
        "def f():\n    a = set()\n    for x in a | {1}:\n        pass",
        "a | {1}",
    ),
    Bite(no_order_from_sets, A_SET_OF_A_CLASS, "self.moved"),
    Bite(no_order_from_sets, "min({1, 2}, key=load)", "{1, 2}"),
    Bite(
        short_docstrings,
        "def test_fold():\n    '''Two.\n\n    Lines.'''",
        "test_fold",
        name="tests.unit.test_view",
    ),
    Bite(finished, "# to".upper() + "DO: more", "README.md:1", name="README.md"),
    Bite(finished, "a\n# fix".upper() + "ME", "Makefile:2", name="Makefile"),
    Bite(portable, "cd /" + "work/main", "README.md:1", name="README.md"),
    Bite(portable, "open('/" + "tmp/log')", "test_log.py:1", name="tests/unit/test_log.py"),
)


@pytest.mark.parametrize("bite", BITES, ids=lambda bite: f"{bite.rule.__name__}-{bite.named}")
def test_rules_bite(bite: Bite) -> None:
    """A text that breaks a rule is found, and the finding names what breaks it."""
    (finding,) = bite.rule(Source(name=bite.name, text=bite.text))
    assert bite.named in finding


GOOD = {
    "a set may be sorted": "for x in sorted({1, 2}): pass",
    "a set may be counted by a generator": "sum(x for x in {1, 2})",
    "a set may be made of a set": "{x for x in {1, 2}}",
    "a sorted list of a set has an order": "sorted(list({1, 2}))",
    "min without a key has one answer": "min({1, 2})",
    "a dict has an order": "for x in {1: 2}: pass",
    "the same name elsewhere may be a tuple": (
        "def f(a: set[int]): return len(a)\ndef g(a: tuple[int, ...]): return [x for x in a]"
    ),
    "a hash may be made of a hash": "class A:\n    def __hash__(self): return hash(self.key)",
    "a path of an HTTP interface is none of a machine": "path = '/v1/work'",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_rules_let_good_code_pass(text: str) -> None:
    """Code that only looks like a breach of a rule is not found."""
    source = Source(name="equipoise.channel.core.view", text=text)
    assert [] == [finding for rule in (*MODULE_RULES, *TEXT_RULES) for finding in rule(source)]


def test_impurity_is_found_at_a_distance() -> None:
    """A pure module that reaches the world over another module of ours is found with the whole
    way.
    """
    known = {
        "equipoise.channel.core.view": Source(
            name="equipoise.channel.core.view", text="from equipoise.channel.core import clock"
        ),
        "equipoise.channel.core.clock": Source(
            name="equipoise.channel.core.clock", text="import time"
        ),
    }
    assert (
        "equipoise.channel.core.view",
        "equipoise.channel.core.clock",
        "time",
    ) == way_to_impurity("equipoise.channel.core.view", known)


def test_a_module_outside_the_rows_is_found() -> None:
    """A new module that nobody gave a place is named, whereas a package's own docstring needs
    none.
    """
    assert ["equipoise.brokers.novelty"] == homeless(
        ["equipoise.brokers", "equipoise.brokers.novelty", "equipoise.brokers.agent.leading"],
        ("equipoise.brokers.agent",),
    )


RUFF_BITES = {
    "T201": ("brokers/runtime/worker.py", '"""D."""\nprint("x")\n'),
    "TID252": ("channel/core/view.py", '"""D."""\nfrom .ranges import bundle\n'),
    "D103": ("channel/core/view.py", '"""D."""\n\n\ndef fold() -> None:\n    pass\n'),
    "ANN401": (
        "channel/core/view.py",
        '"""D."""\nfrom typing import Any\n\n\ndef fold(x: Any) -> None:\n    """Fold."""\n',
    ),
}


@pytest.mark.parametrize("code", RUFF_BITES)
def test_rules_left_to_ruff_bite(code: str) -> None:
    """The rules of the house that ruff holds are switched on for the product."""
    path, text = RUFF_BITES[code]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--output-format=concise",
        "--stdin-filename",
        path,
        "-",
    ]
    outcome = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert code in outcome.stdout, outcome.stderr
