"""The tree is no larger than `size.toml` says, and each measure counts what it names."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter

import pytest

from tests.house.house_rules import PRODUCT, ROOT, Source, modules, within

CEILINGS = tomllib.loads((ROOT / "tests" / "house" / "size.toml").read_text(encoding="utf-8"))
GENERATED = "_pb2"


def statements(source: Source) -> int:
    """Count statements, which no format changes. Imports, docstrings and other bare constants do
    not count.
    """
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(source.tree)
    )


def package(name: str) -> str:
    """Return the part of the product that a module belongs to: `equipoise.shedder`,
    `equipoise.brokers.agent`.
    """
    return ".".join(
        name.split(".")[
            : 3 if name.split(".")[1:2] in (["brokers"], ["channel"], ["spark_jobs"]) else 2
        ]
    )


def sizes(found: dict[str, Source]) -> dict[str, tuple[int, str]]:
    """Return each measure of `size.toml`, with the name of what is largest by it."""
    product = {name: each for name, each in found.items() if within(name, (*PRODUCT, "compose"))}
    counted = {name: statements(each) for name, each in found.items()}
    packages = Counter[str]()
    for name in product:
        packages[package(name)] += counted[name]
    lines = {name: each.text.count("\n") for name, each in found.items()}
    functions = {
        f"{name}.{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for name, each in found.items()
        for function in each.functions
    }
    parents = {name.rpartition(".")[0] for name in product}
    imports = {name: len(each.imports & product.keys()) for name, each in product.items()}
    return {
        "product_statements": (sum(counted[name] for name in product), "the product"),
        "test_statements": (
            sum(counted[name] for name in found if within(name, ("tests",))),
            "the tests",
        ),
        "modules": (len(product.keys() - parents), "the product"),
        "package_statements": _largest(packages),
        "module_statements": _largest({name: counted[name] for name in product}),
        "module_lines": _largest(lines),
        "function_lines": _largest(functions),
        "imports": _largest(imports),
    }


def _largest(measured: dict[str, int]) -> tuple[int, str]:
    return max((size, name) for name, size in measured.items())


def test_the_tree_keeps_its_ceilings() -> None:
    """Nothing has grown beyond its ceiling, and each measure has one."""
    measured = sizes({name: each for name, each in modules().items() if GENERATED not in name})
    assert measured.keys() == CEILINGS.keys()
    assert {} == {name: found for name, found in measured.items() if found[0] > CEILINGS[name]}


@pytest.mark.parametrize(
    ("measure", "size"),
    [
        ("product_statements", (5, "the product")),
        ("test_statements", (1, "the tests")),
        ("modules", (2, "the product")),
        ("package_statements", (4, "equipoise.brokers.agent")),
        ("module_statements", (4, "equipoise.brokers.agent.one")),
        ("module_lines", (9, "equipoise.brokers.agent.one")),
        ("function_lines", (3, "equipoise.brokers.agent.one.f")),
        ("imports", (1, "equipoise.brokers.agent.one")),
    ],
)
def test_a_measure_counts_what_it_names(measure: str, size: tuple[int, str]) -> None:
    """Imports, docstrings and blank lines are no statements."""
    one = '"""One."""\n\nfrom equipoise import two\n\ndef f():\n    x = 1\n    return x\n\nf()\n'
    tree = {"equipoise.brokers.agent.one": one, "equipoise.two": "x = 1\n", "tests.one": "f()\n"}
    assert (
        sizes({name: Source(name=name, text=text) for name, text in tree.items()})[measure] == size
    )
