"""Check the project's own rules on syntax trees: size, names, purity, order and places of imports.

A rule is a pure function from a `Source` to its findings. Rules that ruff, mypy or import-linter
can check belong in pyproject.toml. A rule cannot be switched off in a line: if it makes the code
worse, change it here and give the reason.
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("equipoise",)
# Folders at the root that are packages of `equipoise` (by symlink).
LINKED = ("brokers", "channel", "compaction", "lab", "pulsar_cluster", "shedder", "spark_jobs")
FOLDER_MODULES_MAX = 20
VAGUE_NAMES = frozenset({"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"})

# All modules of these packages are pure, but `__main__`, which drives a terminal, and tests.
PURE = (
    "equipoise.brokers.agent",
    "equipoise.brokers.balancing",
    "equipoise.brokers.client.attempts",
    "equipoise.brokers.errors",
    "equipoise.brokers.load.resource_use",
    "equipoise.brokers.load.sampling",
    "equipoise.brokers.pulsar.topics",
    "equipoise.brokers.pulsar.wire",
    "equipoise.brokers.security.identity",
    "equipoise.brokers.security.limits",
    "equipoise.brokers.security.rights",
    "equipoise.brokers.security.tokens",
    "equipoise.brokers.testing.agent_host",
    "equipoise.brokers.testing.agent_host",
    "equipoise.channel.core",
    "equipoise.channel.inspect",
    "equipoise.lab.search",
    "equipoise.lab.results",
    "equipoise.lab.results",
    "equipoise.lab.running",
    "equipoise.lab.search",
    "equipoise.lab.traces",
    "equipoise.pulsar_cluster.loads",
    "equipoise.pulsar_cluster.moving",
    "equipoise.pulsar_cluster.placement_rules",
    "equipoise.pulsar_cluster.planning",
    "equipoise.pulsar_cluster.records",
    "equipoise.pulsar_cluster.saved_plans",
    "equipoise.pulsar_cluster.story",
    "equipoise.pulsar_cluster.table",
    "equipoise.pulsar_cluster.verify",
    "equipoise.shedder",
    "equipoise.spark_jobs.rules",
    "equipoise.spark_jobs.sequence",
    "tests.simulation",
)
# May import `random.Random`, which takes a seed, and nothing else of `random`.
SEEDED = ("tests.simulation",)
# fmt: off
IMPURE_IMPORTS = frozenset({
    "aiohttp", "asyncio", "concurrent", "confluent_kafka", "datetime", "http", "logging",
    "multiprocessing", "os", "pathlib", "prometheus_client", "psutil", "pyspark", "queue", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "uuid", "uvloop",
})
# fmt: on
# `hash` of a text differs between processes, and `id` between runs.
IMPURE_CALLS = frozenset({"__import__", "eval", "exec", "hash", "id", "input", "open"})
# Calls whose result does not depend on the order of iteration.
ORDER_FREE_CALLS = frozenset({"all", "any", "frozenset", "len", "set", "sorted", "sum"})
ORDER_KEEPING_CALLS = frozenset(
    {"enumerate", "iter", "list", "map", "max", "min", "next", "reversed", "tuple", "zip"}
)

# Imports limited to the named modules: clients of other systems, and the tests.
ONLY_IN = {
    "confluent_kafka": (
        "equipoise.channel.kafka.client",
        "equipoise.examples.kafka_partitions",
        "tests.benchmarks.peers.adapters",
        "tests.kafka",
    ),
    "cryptography": ("equipoise.brokers.security", "tests"),
    "httpx": ("tests",),
    "google": (
        "equipoise.brokers.pulsar.wire.commands",
        "equipoise.brokers.pulsar.wire.pulsar_api_pb2",
        "tests.pulsar.wire_stage",
    ),
    "google_crc32c": ("equipoise.brokers.pulsar.wire.frames", "tests.pulsar.pulsar_speech"),
    "pulsar": (
        "equipoise.pulsar_cluster.reading",
        "equipoise.pulsar_cluster.sources",
        "tests",
    ),
    "jinja2": ("equipoise.spark_jobs.report.page",),
    "kazoo": ("tests.benchmarks.peers.adapters",),
    "jwt": ("equipoise.brokers.security.tokens", "tests"),
    "optuna": ("equipoise.lab.tuning",),
    "pyspark": ("equipoise.spark_jobs", "tests"),
    "tests": ("compose.demo", "tests"),
    "zstandard": ("equipoise.spark_jobs.sequence.snapshots",),
}
CHECKER = "tests.checker"  # Imports nothing of the product: shared code would share its mistakes.

TEXT_SUFFIXES = frozenset({".cfg", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"})
TEXT_NAMES = frozenset({".gitignore", "Dockerfile", "Makefile", "run"})
# Folders that start with a dot are excluded too, except .ci.
NOT_OURS = frozenset({"build", "dist", "htmlcov", "__pycache__"})
# The brackets keep these patterns from matching themselves.
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.)}>-])/(?:home|root|tmp|work)\b")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Source:
    """One text file. `name` is the dotted name of a module, else the path."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. Only for modules."""
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> tuple[FunctionNode, ...]:
        """All functions and methods, including nested ones."""
        return tuple(node for node in ast.walk(self.tree) if isinstance(node, FunctionNode))

    @cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names that a module imports. `from a import b` counts as `a` and `a.b`,
        because b may be a module.
        """
        found = set[str]()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)


Rule = Callable[[Source], Iterator[str]]


def within(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of the packages, or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_pure(name: str) -> bool:
    """Return whether a module must be pure."""
    last = name.rsplit(".", maxsplit=1)[-1]
    return (
        within(name, PURE)
        and not last.startswith(("__main__", "test_"))
        and not last.endswith("_pb2")
    )


def roots(names: Iterable[str]) -> list[str]:
    """Return the first parts of dotted names, sorted and without duplicates."""
    return sorted({name.split(".")[0] for name in names})


def impure_roots(source: Source, *, seeded: bool) -> list[str]:
    """Return the impure imports of a module. A seeded module may import `random`."""
    return [
        root
        for root in roots(source.imports)
        if root in IMPURE_IMPORTS and not (seeded and root == "random")
    ]


def telling_names(source: Source) -> Iterator[str]:
    """Refuse vague names of modules and packages."""
    for vague in sorted(VAGUE_NAMES.intersection(source.name.split("."))):
        yield f"{source.name} is named {vague!r}, which says nothing; name it for what it holds"


def one_door(source: Source) -> Iterator[str]:
    """Limit each client of another system to its modules, and keep the tests out of the product."""
    for root in roots(source.imports):
        if root in ONLY_IN and not within(source.name, ONLY_IN[root]):
            yield f"{source.name} imports {root}, which only {' and '.join(ONLY_IN[root])} may"


def one_name(source: Source) -> Iterator[str]:
    """Require imports of product modules by their name below `equipoise`."""
    for root in roots(source.imports):
        if root in LINKED:
            yield f"{source.name} imports {root}; import equipoise.{root}"


def impartial_checker(source: Source) -> Iterator[str]:
    """Keep the checker free of imports from the product that it checks."""
    for root in roots(source.imports) if within(source.name, (CHECKER,)) else ():
        if root in PRODUCT:
            yield f"{source.name} imports {root}; the checker shares nothing with what it checks"


def pure_imports(source: Source) -> Iterator[str]:
    """Keep pure modules free of impure imports. A seeded module may import `random`."""
    for root in (
        impure_roots(source, seeded=within(source.name, SEEDED)) if is_pure(source.name) else ()
    ):
        yield f"{source.name} is pure, and imports {root}"


def pure_calls(source: Source) -> Iterator[str]:
    """Keep pure modules free of calls that do IO or differ between runs. `__hash__` may call
    `hash`.
    """
    if not is_pure(source.name):
        return
    hashing = {
        id(call)
        for function in source.functions
        if function.name == "__hash__"
        for call in ast.walk(function)
    }
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_CALLS
            and id(node) not in hashing
        ):
            yield f"{source.name}:{node.lineno} is pure, and calls {node.func.id}()"


def seeded_random(source: Source) -> Iterator[str]:
    """Allow pure modules only `Random` of `random`, because it takes a seed."""
    if not is_pure(source.name):
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        ):
            yield (
                f"{source.name}:{node.lineno} is pure, and uses random.{node.attr}; use the run's"
                " random.Random"
            )
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module == "random"
            and [alias.name for alias in node.names] != ["Random"]
        ):
            yield f"{source.name}:{node.lineno} is pure, and imports more of random than Random"


def is_set_type(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is set or frozenset, with or without an item type."""
    head = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(head, ast.Name) and head.id in {"frozenset", "set"}


def is_set(node: ast.expr, names: frozenset[str]) -> bool:
    """Return whether an expression is a set, judged by its own text and the known set names."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name() | ast.Subscript() as called):
            return is_set_type(called)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
        case ast.BinOp(
            op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), left=left, right=right
        ):
            # Operators on `.keys()` also give sets.
            return any(
                is_set(side, names) or ast.unparse(side).endswith((".keys()", ".items()"))
                for side in (left, right)
            )
        case _:
            return False


def set_names(scope: ast.AST) -> frozenset[str]:
    """Return the variables, arguments and attributes that a scope annotates as sets or assigns a
    set to.
    """
    found = set[str]()
    for node in ast.walk(scope):
        if isinstance(node, ast.arg) and is_set_type(node.annotation):
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and is_set_type(node.annotation):
            found.add(ast.unparse(node.target).removeprefix("self."))
        elif isinstance(node, ast.Assign) and is_set(node.value, frozenset()):
            found.update(ast.unparse(target) for target in node.targets)
    return frozenset(found)


def is_call_of(node: ast.AST | None, names: frozenset[str]) -> bool:
    """Return whether a node calls one of these builtins."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def iterated(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield all expressions that are iterated where the order matters."""
    parent_of = {
        child: parent for parent in ast.walk(scope) for child in ast.iter_child_nodes(parent)
    }
    for node, parent in parent_of.items():
        if isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter
        elif isinstance(node, ast.comprehension):
            # A set of a set has no order. `sorted` and the like ignore a generator's order.
            if not isinstance(parent, ast.SetComp) and not is_call_of(
                parent_of.get(parent), ORDER_FREE_CALLS
            ):
                yield node.iter
        elif isinstance(node, ast.Starred) and not isinstance(parent, ast.Set):
            yield node.value
        elif (
            isinstance(node, ast.Call)
            and is_call_of(node, ORDER_KEEPING_CALLS)
            and not is_call_of(parent, ORDER_FREE_CALLS)
        ):
            # Without a key, the result of min and max does not depend on the order.
            yield from (
                node.args
                if node.keywords or not is_call_of(node, frozenset({"max", "min"}))
                else ()
            )


def no_order_from_sets(source: Source) -> Iterator[str]:
    """Refuse iteration over plain sets in pure modules: the order differs between processes and
    could affect a decision.
    """
    if not is_pure(source.name):
        return
    classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef)]
    attributes = frozenset[str]().union(*(set_names(node) for node in classes))
    top = [node for node in source.tree.body if not isinstance(node, FunctionNode | ast.ClassDef)]
    for scope in (ast.Module(body=top, type_ignores=[]), *source.functions):
        names = set_names(scope)
        for node in iterated(scope):
            if is_set(node, attributes if isinstance(node, ast.Attribute) else names):
                yield (
                    f"{source.name}:{node.lineno} iterates the set {ast.unparse(node)}; sort it, or"
                    " keep a dict or tuple"
                )


def short_docstrings(source: Source) -> Iterator[str]:
    """Refuse the docstring of a test that is longer than one paragraph. A name that says it all
    needs none.
    """
    if not source.name.split(".")[-1].startswith("test_"):
        return
    for function in source.functions:
        docstring = ast.get_docstring(function) or ""
        if function.name.startswith("test_") and "\n\n" in docstring:
            yield f"{source.name}.{function.name} has a docstring of more than one paragraph"


def finished(source: Source) -> Iterator[str]:
    """Refuse marks of unfinished work: finish it, or open an issue."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if UNFINISHED.search(line):
            yield f"{source.name}:{number} is unfinished: {line.strip()}"


def portable(source: Source) -> Iterator[str]:
    """Refuse paths of one machine."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if MACHINE_PATH.search(line):
            yield f"{source.name}:{number} names a path of one machine: {line.strip()}"


MODULE_RULES: tuple[Rule, ...] = (
    telling_names,
    one_door,
    one_name,
    impartial_checker,
    pure_imports,
    pure_calls,
    seeded_random,
    no_order_from_sets,
    short_docstrings,
)
TEXT_RULES: tuple[Rule, ...] = (finished, portable)


@cache
def texts() -> tuple[Source, ...]:
    """Return all hand-written texts, named by their path below the root."""
    paths = list[Path]()
    for folder, below, files in os.walk(ROOT):
        below[:] = [
            name
            for name in below
            if name == ".ci" or not (name in NOT_OURS or name.startswith("."))
        ]
        paths += [
            Path(folder, name)
            for name in files
            if name in TEXT_NAMES or Path(name).suffix in TEXT_SUFFIXES
        ]
    return tuple(
        Source(name=path.relative_to(ROOT).as_posix(), text=path.read_text(encoding="utf-8"))
        for path in sorted(paths)
    )


@cache
def modules() -> dict[str, Source]:
    """Return all modules of the product, of compose and of the tests, by dotted name."""
    found = {}
    for text in texts():
        if text.name.endswith(".py") and text.name.split("/")[0] in {
            *PRODUCT,
            *LINKED,
            "compose",
            "tests",
        }:
            name = text.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            name = f"equipoise.{name}" if within(name, LINKED) else name
            found[name] = Source(name=name, text=text.text)
    return found


def way_to_impurity(name: str, known: dict[str, Source]) -> tuple[str, ...]:
    """Return the shortest import chain from a module to an impure import; empty if there is
    none.
    """
    ways: list[tuple[str, ...]] = [(name,)]
    seen = {name}
    for way in ways:  # The list grows during the loop: breadth-first search.
        for root in impure_roots(known[way[-1]], seeded=within(name, SEEDED)):
            return (*way, root)
        onwards = sorted(known[way[-1]].imports & known.keys() - seen)
        seen.update(onwards)
        ways += [(*way, other) for other in onwards]
    return ()


def rows_of_arrows() -> tuple[str, ...]:
    """Return the names in the rows of the layers contracts in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    return tuple(
        name.strip(" ()")
        for contract in contracts
        for row in contract["layers"]
        for name in row.split(":")
    )


def homeless(names: Iterable[str], rows: tuple[str, ...]) -> list[str]:
    """Return the product modules that are in no row. A package that contains rows needs none for
    its own docstring.
    """
    return [
        name
        for name in names
        if within(name, PRODUCT)
        and not within(name, rows)
        and not any(row.startswith(f"{name}.") for row in rows)
    ]
