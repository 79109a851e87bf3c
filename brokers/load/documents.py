"""Encode and decode the loads of brokers and bundles as compact JSON.

Input comes from other programs and is checked by hand: each parser returns a value or raises
`PeerError`. Unknown fields are ignored.

NaN and infinities are written as `null` and read as NaN, so that `shedder.loads.fault_of` can
detect and attribute them. An invalid count or name makes the whole document unreadable.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import astuple, fields, replace
from operator import attrgetter
from typing import Final

import orjson

from equipoise.brokers.errors import unreadable_load
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.fields import (
    MalformedError,
    Raw,
    fail,
    integer,
    optional_text,
    text,
)
from equipoise.channel.core.ranges import check_broker_id
from equipoise.channel.core.records import KEY_CHARACTERS_MAX
from equipoise.shedder.fit import SUMS, SUMS_UNITS
from equipoise.shedder.loads import (
    COSTS_MAX,
    DECLARED_MAX,
    ENTRY_BYTES,
    RATES,
    UNIT_CHARACTERS_MAX,
    BundleTraffic,
    Declared,
    Load,
    Resources,
    Traffic,
    Use,
)

REPORT_BYTES_MAX: Final = 6_144
"""The largest encoded report, after `light`: the costs of 512 bundles, and about 30 bundles with
names of 40 characters."""

LOAD_BYTES_MAX: Final = 4 * REPORT_BYTES_MAX
"""The largest load with averages over light reports.

It has the same rows, but averages are not rounded: a figure of 3 characters may take 24, which
makes the shortest bundle row three times as long.
"""

# Rates and resource use are not known more precisely than to one part in a million.
_DIGITS: Final = 6

# Not `astuple`, which copies each figure deeply and takes most of the time of a report.
_rates_of: Final = attrgetter(*RATES)

_RESOURCES: Final = tuple(each.name for each in fields(Resources))

# A bundle's row: its name, its traffic, four counts, its cost.
_BUNDLE_ROW: Final = 1 + len(RATES) + 4 + 1

_COLUMN_CHARACTERS_MAX: Final = 4 * ((COSTS_MAX * ENTRY_BYTES + 2) // 3)
# Not rounded: differences of these sums count.
_DOUBLE_BYTES: Final = 8
_SUMS_CHARACTERS: Final = 4 * ((SUMS * _DOUBLE_BYTES + 2) // 3)


def light(load: Load) -> Load:
    """Return the load as its broker sends it: figures rounded, and the lightest bundles dropped if
    it is too large.

    Its encoding takes at most `REPORT_BYTES_MAX`, however long its names are.
    """
    rounded = replace(
        load,
        resources=Resources(
            **{name: _rounded_use(getattr(load.resources, name)) for name in _RESOURCES}
        ),
        average_use=_rounded(load.average_use),
        average_bytes_per_second=_rounded(load.average_bytes_per_second),
        traffic=_rounded_traffic(load.traffic),
        cost=_rounded(load.cost),
        noise=None if load.noise is None else _rounded(load.noise),
        declared={
            namespace: replace(
                each,
                amount=_rounded(each.amount),
                estimate=_rounded(each.estimate),
                rate=_rounded(each.rate),
            )
            for namespace, each in load.declared.items()
        },
        other_work=None if load.other_work is None else _rounded(load.other_work),
        bundles=(),
    )
    room = REPORT_BYTES_MAX - len(encode_load(rounded))
    if room < 0:  # Eight of the longest names of namespaces.
        rounded = replace(rounded, declared={})
        room = REPORT_BYTES_MAX - len(encode_load(rounded))
    heaviest_first: list[BundleTraffic] = []
    for each in reversed(load.bundles):  # Rounded one by one, since thousands may not fit.
        bundle = replace(each, traffic=_rounded_traffic(each.traffic), cost=_rounded(each.cost))
        room -= len(orjson.dumps(_row_of_bundle(bundle))) + 1  # The comma.
        if room < 0:
            break
        heaviest_first.append(bundle)
    return replace(rounded, bundles=tuple(reversed(heaviest_first)))


def encode_load(load: Load) -> bytes:
    """Encode a load. A broker that reports no bundles is written with an empty list."""
    return orjson.dumps(
        {
            "broker": load.broker,
            "at_ms": load.at_ms,
            "history": load.history,
            "resources": _row_of_resources(load.resources),
            "averages": [load.average_use, load.average_bytes_per_second],
            "traffic": _rates_of(load.traffic),
            "bundle_count": load.bundle_count,
            "topics": load.topics,
            "cost": load.cost,
            "noise": load.noise,
            "declared": {name: astuple(each) for name, each in load.declared.items()},
            "capacities": dict(load.capacities),
            "problem": load.problem,
            "other_work": load.other_work,
            "cpu_sums": [
                SUMS_UNITS,
                b64encode(struct.pack(f">{len(load.cpu_sums)}d", *load.cpu_sums)).decode(),
            ],
            "cpu_problem": load.cpu_problem,
            "column": b64encode(load.column).decode(),
            "bundles": [_row_of_bundle(bundle) for bundle in load.bundles],
        }
    )


def decode_load(data: bytes) -> Load:
    """Decode what `encode_load` encoded. Raises `PeerError` for anything else."""
    try:
        return _load(orjson.loads(data))
    except (orjson.JSONDecodeError, MalformedError) as error:
        raise unreadable_load(str(error)) from None


def _load(document: object) -> Load:
    raw = _object(document)
    average_use, average_bytes_per_second = (
        _figure(each, "averages") for each in _row(raw.get("averages"), "averages", 2)
    )
    return Load(
        broker=_broker(raw),
        at_ms=integer(raw, "at_ms"),
        resources=_resources(raw),
        average_use=average_use,
        average_bytes_per_second=average_bytes_per_second,
        traffic=_traffic(_row(raw.get("traffic"), "traffic", len(RATES)), "traffic"),
        bundle_count=integer(raw, "bundle_count"),
        topics=integer(raw, "topics"),
        cost=_figure(raw.get("cost"), "cost"),
        noise=_unless_null(raw, "noise"),
        declared={namespace: _declared(each) for namespace, each in _few(raw, "declared").items()},
        capacities={
            unit: _figure(each, "capacities") for unit, each in _few(raw, "capacities").items()
        },
        problem=optional_text(raw, "problem"),
        other_work=_unless_null(raw, "other_work"),
        cpu_sums=_cpu_sums(raw),
        cpu_problem=optional_text(raw, "cpu_problem"),
        column=_in_base64(raw, "column", _COLUMN_CHARACTERS_MAX),
        bundles=_bundles(raw),
        history=_history(raw),
    )


def _few(raw: Raw, name: str) -> Raw:
    """Return an object of at most `DECLARED_MAX` fields."""
    value = raw.get(name)
    if not isinstance(value, dict) or len(value) > DECLARED_MAX:
        fail(f"{name} must be an object of at most {DECLARED_MAX} fields")
    return value


def _declared(row: object) -> Declared:
    unit, amount, estimate, rate = _row(row, "each of declared", 4)
    return Declared(
        unit=text({"a unit": unit}, "a unit", UNIT_CHARACTERS_MAX),
        amount=_figure(amount, "an amount"),
        estimate=_figure(estimate, "an estimate"),
        rate=_figure(rate, "a rate"),
    )


def _history(raw: Raw) -> float:
    history = _figure(raw.get("history"), "history")
    return history if 0 <= history <= 1 else fail("history must be a share from 0 to 1")


def _unless_null(raw: Raw, name: str) -> float | None:
    value = raw.get(name)
    return None if value is None else _figure(value, name)


def _cpu_sums(raw: Raw) -> tuple[float, ...]:
    """Return the sums; none if another version has made them, which counts in its own units."""
    match raw.get("cpu_sums"):
        case [int(units), str(data)] if units == SUMS_UNITS and len(data) == _SUMS_CHARACTERS:
            with suppress(ValueError, struct.error):
                return struct.unpack(f">{SUMS}d", b64decode(data, validate=True))
    return ()


def _in_base64(raw: Raw, name: str, characters_max: int) -> bytes:
    value = raw.get(name)
    if not isinstance(value, str) or len(value) > characters_max:
        fail(f"{name} must be text of at most {characters_max} characters")
    try:
        return b64decode(value, validate=True)
    except ValueError:
        fail(f"{name} must be in base64")


def _bundles(raw: Raw) -> tuple[BundleTraffic, ...]:
    rows = raw.get("bundles")
    if not isinstance(rows, list):
        fail("bundles must be a list")
    bundles = tuple(_bundle(row) for row in rows)
    if len({bundle.bundle for bundle in bundles}) < len(bundles):
        fail("bundles must name each bundle once")
    return bundles


def _bundle(document: object) -> BundleTraffic:
    name, *row = _row(document, "each of bundles", _BUNDLE_ROW)
    traffic, counts, cost = row[: len(RATES)], row[len(RATES) : -1], row[-1]
    open_here: Raw = dict(
        zip(("topics", "consumers", "producers", "cache_bytes"), counts, strict=True)
    )
    return BundleTraffic(
        bundle=text({"the name of a bundle": name}, "the name of a bundle", KEY_CHARACTERS_MAX),
        traffic=_traffic(traffic, "each of bundles"),
        topics=integer(open_here, "topics"),
        consumers=integer(open_here, "consumers"),
        producers=integer(open_here, "producers"),
        cache_bytes=integer(open_here, "cache_bytes"),
        cost=_figure(cost, "a cost"),
    )


def _resources(raw: Raw) -> Resources:
    row = [
        _figure(each, "resources")
        for each in _row(raw.get("resources"), "resources", 2 * len(_RESOURCES))
    ]
    return Resources(
        **{
            name: Use(used=row[2 * place], limit=row[2 * place + 1])
            for place, name in enumerate(_RESOURCES)
        }
    )


def _traffic(row: list[object], what: str) -> Traffic:
    return Traffic(**{name: _figure(each, what) for name, each in zip(RATES, row, strict=True)})


def _object(document: object) -> Raw:
    return document if isinstance(document, dict) else fail("it must be an object")


def _row(value: object, name: str, length: int) -> list[object]:
    """Return the first `length` items. Later versions may append more."""
    if not isinstance(value, list) or len(value) < length:
        fail(f"{name} must be a list of at least {length}")
    return value[:length]


def _figure(value: object, name: str) -> float:
    if value is None:
        return float("nan")
    if type(value) is not float and type(value) is not int:
        fail(f"{name} must be of numbers")
    return float(value)


def _broker(raw: Raw) -> str:
    try:
        return check_broker_id(text(raw, "broker"))
    except CallerError as error:
        fail(str(error))


def _row_of_resources(resources: Resources) -> list[float]:
    uses = (getattr(resources, name) for name in _RESOURCES)
    return [figure for use in uses for figure in (use.used, use.limit)]


def _row_of_bundle(bundle: BundleTraffic) -> list[object]:
    counts = (bundle.topics, bundle.consumers, bundle.producers, bundle.cache_bytes)
    return [bundle.bundle, *_rates_of(bundle.traffic), *counts, bundle.cost]


def _rounded_traffic(traffic: Traffic) -> Traffic:
    return Traffic(**{name: _rounded(getattr(traffic, name)) for name in RATES})


def _rounded_use(use: Use) -> Use:
    return Use(used=_rounded(use.used), limit=_rounded(use.limit))


def _rounded(figure: float) -> float:
    return float(f"{figure:.{_DIGITS}g}")
