"""Every module and every text of the project keeps the rules of the house, and each rule bites."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath

import pytest
from coverage import Coverage

from tests.house.house_rules import (
    FOLDER_MODULES_MAX,
    FUNCTION_LINES_MAX,
    LINKED,
    MODULE_LINES_MAX,
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
    one_line_docstrings,
    one_name,
    portable,
    pure_calls,
    pure_imports,
    rows_of_arrows,
    seeded_random,
    short_functions,
    short_modules,
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


def test_what_is_not_to_be_traced_is_not() -> None:
    """In a worker of xdist, too, nobody traces a test that `tests.conftest.UNTRACED` names."""
    assert Coverage.current() is None


def test_pure_modules_reach_no_impure_one() -> None:
    """A pure module is pure with all that it imports of ours, at any distance."""
    product = {name: source for name, source in modules().items() if within(name, PRODUCT)}
    assert [] == [way for name in product if is_pure(name) and (way := way_to_impurity(name, product))]


def test_every_module_stands_in_a_row_of_the_arrows() -> None:
    """A module that no row of the layers contract names would be free of the arrows, so there is none."""
    assert [] == homeless(modules(), rows_of_arrows())


def test_no_folder_holds_too_many_modules() -> None:
    """A folder of the product holds at most 20 modules: more of them are several packages."""
    paths = (PurePath(text.name) for text in texts())
    held = Counter(
        path.parent for path in paths if path.suffix == ".py" and path.stem != "__init__" and path.parts[0] in (*LINKED, *PRODUCT)
    )
    assert {} == {folder: count for folder, count in held.items() if count > FOLDER_MODULES_MAX}


@dataclass(frozen=True, kw_only=True)
class Bite:
    """A text that breaks one rule, and what the finding must name."""

    rule: Rule
    name: str
    text: str
    named: str


LONG_BODY = "    x = 1\n" * FUNCTION_LINES_MAX
BITES = (
    Bite(rule=short_functions, name="equipoise.channel.core.view", text=f"def fold():\n{LONG_BODY}", named="fold has 71 lines"),
    Bite(
        rule=short_functions,
        name="equipoise.channel.core.view",
        text=f"class A:\n  async def go(self):\n{LONG_BODY}",
        named="go has 71 lines",
    ),
    Bite(rule=short_modules, name="equipoise.channel.core.view", text="x = 1\n" * (MODULE_LINES_MAX + 1), named="801 lines"),
    Bite(rule=telling_names, name="brokers.utils.clock", text="", named="'utils'"),
    Bite(rule=telling_names, name="shedder.base", text="", named="'base'"),
    Bite(rule=one_door, name="equipoise.channel.kafka.log", text="import confluent_kafka", named="confluent_kafka"),
    Bite(rule=one_door, name="equipoise.brokers.server.main", text="from faust import App", named="faust"),
    Bite(rule=one_door, name="equipoise.channel.core.view", text="import pyspark.sql as sql", named="pyspark"),
    Bite(rule=one_door, name="equipoise.brokers.local.demo", text="from tests.channels.folding import Channel", named="imports tests"),
    Bite(rule=one_name, name="tests.unit.test_view", text="from channel.core import view", named="import equipoise.channel"),
    Bite(rule=impartial_checker, name="tests.checker.checker", text="from equipoise.channel.core import view", named="imports equipoise"),
    Bite(rule=pure_imports, name="equipoise.channel.core.view", text="import time", named="imports time"),
    Bite(rule=pure_imports, name="equipoise.channel.core.view", text="from os.path import join", named="imports os"),
    Bite(rule=pure_imports, name="equipoise.brokers.agent.leading", text="import random", named="imports random"),
    Bite(rule=pure_imports, name="equipoise.shedder.transfer", text="def f():\n    import sqlite3", named="imports sqlite3"),
    Bite(rule=pure_imports, name="equipoise.brokers.testing.simulation.clock", text="import random, time", named="imports time"),
    Bite(rule=pure_calls, name="equipoise.channel.core.view", text="x = hash('key')", named="hash()"),
    Bite(rule=pure_calls, name="equipoise.shedder.plan", text="open('plan')", named="open()"),
    Bite(
        rule=seeded_random,
        name="equipoise.brokers.testing.simulation.faults",
        text="import random\nrandom.shuffle([])",
        named="random.shuffle",
    ),
    Bite(rule=seeded_random, name="equipoise.brokers.testing.simulation.faults", text="from random import choice", named="more of random"),
    Bite(rule=no_order_from_sets, name="equipoise.channel.core.view", text="for x in {1, 2}:\n    pass", named="{1, 2}"),
    Bite(rule=no_order_from_sets, name="equipoise.channel.core.view", text="[x for x in set(names)]", named="set(names)"),
    Bite(rule=no_order_from_sets, name="equipoise.channel.core.view", text="{x: 1 for x in {y for y in z}}", named="for y in z"),
    Bite(rule=no_order_from_sets, name="equipoise.channel.core.view", text="list(frozenset(names))", named="frozenset(names)"),
    Bite(rule=no_order_from_sets, name="equipoise.channel.core.view", text="f(*set(names))", named="set(names)"),
    Bite(
        rule=no_order_from_sets,
        name="equipoise.channel.core.view",
        text="for x in a.keys() - b.keys():\n    pass",
        named="a.keys() - b.keys()",
    ),
    Bite(rule=no_order_from_sets, name="equipoise.channel.core.view", text="def f(a: set[str]):\n    return [x for x in a]", named="set a"),
    Bite(
        rule=no_order_from_sets,
        name="equipoise.channel.core.view",
        text="def f():\n    a = set()\n    for x in a | {1}:\n        pass",
        named="a | {1}",
    ),
    Bite(
        rule=no_order_from_sets,
        name="equipoise.shedder.plan",
        text="class A:\n    moved: frozenset[str]\n    def f(self):\n        for x in self.moved:\n            pass",
        named="self.moved",
    ),
    Bite(rule=no_order_from_sets, name="equipoise.shedder.plan", text="min({1, 2}, key=load)", named="{1, 2}"),
    Bite(
        rule=one_line_docstrings,
        name="tests.unit.test_view",
        text="def test_fold():\n    '''Two.\n\n    Lines.'''",
        named="test_fold",
    ),
    Bite(rule=finished, name="README.md", text="# to".upper() + "DO: more", named="README.md:1"),
    Bite(rule=finished, name="Makefile", text="a\n# fix".upper() + "ME", named="Makefile:2"),
    Bite(rule=portable, name="README.md", text="cd /" + "work/main", named="README.md:1"),
    Bite(rule=portable, name="tests/unit/test_log.py", text="open('/" + "tmp/log')", named="test_log.py:1"),
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
    "the same name elsewhere may be a tuple": "def f(a: set[int]): return len(a)\ndef g(a: tuple[int, ...]): return [x for x in a]",
    "a hash may be made of a hash": "class A:\n    def __hash__(self): return hash(self.key)",
    "a path of an HTTP interface is none of a machine": "path = '/v1/work'",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_rules_let_good_code_pass(text: str) -> None:
    """Code that only looks like a breach of a rule is not found."""
    source = Source(name="equipoise.channel.core.view", text=text)
    assert [] == [finding for rule in (*MODULE_RULES, *TEXT_RULES) for finding in rule(source)]


def test_impurity_is_found_at_a_distance() -> None:
    """A pure module that reaches the world over another module of ours is found with the whole way."""
    known = {
        "equipoise.channel.core.view": Source(name="equipoise.channel.core.view", text="from equipoise.channel.core import clock"),
        "equipoise.channel.core.clock": Source(name="equipoise.channel.core.clock", text="import time"),
    }
    assert ("equipoise.channel.core.view", "equipoise.channel.core.clock", "time") == way_to_impurity("equipoise.channel.core.view", known)


def test_a_module_outside_the_rows_is_found() -> None:
    """A new module that nobody gave a place is named, whereas a package's own docstring needs none."""
    assert ["equipoise.brokers.novelty"] == homeless(
        ["equipoise.brokers", "equipoise.brokers.novelty", "equipoise.brokers.agent.leading"], ("equipoise.brokers.agent",)
    )


RUFF_BITES = {
    "T201": ("brokers/runtime/worker.py", '"""D."""\nprint("x")\n'),
    "TID252": ("channel/core/view.py", '"""D."""\nfrom .ranges import bundle\n'),
    "D103": ("channel/core/view.py", '"""D."""\n\n\ndef fold() -> None:\n    pass\n'),
    "ANN401": ("channel/core/view.py", '"""D."""\nfrom typing import Any\n\n\ndef fold(x: Any) -> None:\n    """Fold."""\n'),
}


@pytest.mark.parametrize("code", RUFF_BITES)
def test_rules_left_to_ruff_bite(code: str) -> None:
    """The rules of the house that ruff holds are switched on for the product."""
    path, text = RUFF_BITES[code]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "--stdin-filename", path, "-"]
    outcome = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT)
    assert code in outcome.stdout, outcome.stderr
