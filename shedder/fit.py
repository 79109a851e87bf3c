"""Fit what calls, bytes and sessions take of a core to the CPU use of brokers.

Theory of operation:

* The CPU use of a broker, less what was measured of its bundles, is the sum of amounts times
  coefficients: calls, bytes, sessions and calls in progress, bundles, and 1 for the process itself.
  The rest is noise, or other work.
* Each broker keeps decaying sums of the products of these figures, and reports them. The sums of
  brokers add up, so all brokers pool what all have seen, and one that joins begins with it.
* The estimate is least squares with a Gaussian prior around what is assumed (a ridge regression, in
  shares of what is assumed). A machine or a framework may make calls, bytes and sessions all
  `_SCALE` times as expensive; apart from that, each is as uncertain as it is large. So what data do
  not tell apart, such as a constant rate of calls of one size, keeps its assumed proportions. Each
  estimate is between 1 / `SHARE_MAX` and `SHARE_MAX` of what is assumed.
* No broker weighs more than the median of those with load, by the mean square of what it is
  expected to use, nor more than data of hours can. So a minority whose sums are wrong cannot bend
  the estimate by their size: with the next rule they count as few.
* Brokers that use more than the others explain do other work, and must not make calls look
  expensive. So a broker counts less the further it is from the estimate, and those above it a
  little less than those below: the estimate is near the `_QUANTILE` of brokers.
* Costs follow slowly: a coefficient for costs is at most twice as far from what is assumed for each
  `_DOUBLING_S` of data. That is ten times as long as brokers fit apart from one another. So they
  count alike to 7 % at any time: less than what moves bundles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from operator import mul
from statistics import median_low
from typing import Final, NamedTuple
from zlib import crc32

from equipoise.shedder.costs import ASSUMED, Coefficients

SHARE_MAX: Final = 100.0
"""An estimate is at most so many times what is assumed, and at least as small a part of it."""

_ASSUMED: Final[tuple[float, ...]] = astuple(ASSUMED)
_NUMBER: Final = len(_ASSUMED)
_PAIRS: Final = tuple((one, other) for one in range(_NUMBER) for other in range(one, _NUMBER))

_SQUARES: Final = tuple(place for place, (one, other) in enumerate(_PAIRS) if one == other)

SUMS: Final = len(_PAIRS) + _NUMBER
"""The length of the sums of a broker: products of the predictors, and of these and the CPU use."""

_ROW_S: Final = 10.0  # The time of one observation.

SUMS_UNITS: Final = crc32(repr((_ASSUMED, _ROW_S)).encode())
"""The mark of the units of sums. Those with another mark say nothing here."""

# How much the CPU use of one observation differs from what explains it. Counters are read at
# different moments.
_NOISE_CORES: Final = 0.02
_SCALE: Final = 10.0
_PROCESS: Final = 3.0  # How uncertain it is what the process takes, as a share of that.
_HALF_LIFE_S: Final = 3_600.0
_ROWS_MIN: Final = 1e-6
_ROWS_MAX: Final = 1 / (1 - 0.5 ** (_ROW_S / _HALF_LIFE_S))  # After many half lives.
_QUANTILE: Final = 0.4
_PASSES: Final = 12
_SUM_MAX: Final = 1e11  # Of ten thousand cores for hours.
_DOUBLING_S: Final = 150.0
# A smaller standard error than this part of an estimate, or of what is assumed, makes it known.
_CERTAIN: Final = 0.5

# Calls, bytes and sessions have the covariance identity + _SCALE^2 in shares. This is its inverse.
_SHARED: Final = 3
_COUPLED: Final = _SCALE**2 / (1 + _SHARED * _SCALE**2)
_PRECISION: Final = tuple(
    tuple(
        (one == other) - _COUPLED
        if one < _SHARED and other < _SHARED
        else (one == other) * (_PROCESS**-2 if one == _NUMBER - 1 else 1.0)
        for other in range(_NUMBER)
    )
    for one in range(_NUMBER)
)


class Amounts(NamedTuple):
    """What a broker does per second. `sessions` are open, or are calls in progress."""

    calls: float = 0.0
    bytes: float = 0.0
    sessions: float = 0.0
    bundles: float = 0.0
    processes: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What the CPU use of brokers shows. `unknown` names the coefficients that it does not tell
    apart from others, or hardly: they are near what is assumed. `for_costs`: see the module.
    """

    coefficients: Coefficients = ASSUMED
    for_costs: Coefficients = ASSUMED
    unknown: tuple[str, ...] = tuple(each.name for each in fields(ASSUMED))


def with_observation(
    sums: Sequence[float], amounts: Amounts, used_cores: float, *, elapsed_s: float
) -> tuple[float, ...]:
    """Return the sums of a broker with what it has used in these seconds, apart from what was
    measured of its bundles. `sums` are empty before.
    """
    predictors = [amount * assumed for amount, assumed in zip(amounts, _ASSUMED, strict=True)]
    weight = elapsed_s / _ROW_S
    now = (
        *(weight * predictors[one] * predictors[other] for one, other in _PAIRS),
        *(weight * each * used_cores for each in predictors),
    )
    if not sums:
        return now
    kept = 0.5 ** (elapsed_s / _HALF_LIFE_S)
    return tuple(kept * old + new for old, new in zip(sums, now, strict=True))


def cpu_of(amounts: Amounts, coefficients: Coefficients) -> float:
    """Return the share of a core that these amounts take."""
    return math.fsum(map(mul, amounts, astuple(coefficients)))


def fit(brokers: Iterable[Sequence[float]]) -> Fit:
    """Return the fit to the sums of these brokers. Sums that cannot be are ignored."""
    known = _levelled([sums for sums in brokers if _are_sums(sums)])
    if not known:
        return Fit()
    shares, weights = [1.0] * _NUMBER, [1.0] * len(known)
    precision = [list(row) for row in _PRECISION]
    for _ in range(_PASSES):
        pooled = [
            sum(map(mul, weights, column)) / _NOISE_CORES**2 for column in zip(*known, strict=True)
        ]
        precision = _with_prior(pooled)
        pull = [
            sum(row) + used for row, used in zip(_PRECISION, pooled[len(_PAIRS) :], strict=True)
        ]
        shares = _bounded(precision, pull)
        weights = [_weight(_excess(sums, shares)) for sums in known]
    seconds = max(map(_rows, known)) * _ROW_S
    most = min(SHARE_MAX, 2 ** min(seconds / _DOUBLING_S, SHARE_MAX))
    errors = [_error(precision, place) for place in range(_NUMBER)]
    return Fit(
        coefficients=_of_shares(shares),
        for_costs=_of_shares([min(max(share, 1 / most), most) for share in shares]),
        unknown=tuple(
            each.name
            for each, share, error in zip(fields(ASSUMED), shares, errors, strict=True)
            if error > _CERTAIN * min(1.0, share)
        ),
    )


def unexplained_cores(sums: Sequence[float], found: Fit) -> float | None:
    """Return the mean CPU use of a broker beyond what the fit explains, which may be negative; None
    without sums.
    """
    if not _are_sums(sums):
        return None
    coefficients = astuple(found.coefficients)
    return _excess(
        sums, [each / assumed for each, assumed in zip(coefficients, _ASSUMED, strict=True)]
    )


def _rows(sums: Sequence[float]) -> float:
    """Return the weight of the observations."""
    return sums[len(_PAIRS) - 1] / _ASSUMED[-1] ** 2


def _levelled(brokers: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    """Return the sums of brokers so that each weighs at most as much as the median of those whose
    bundles use more than the process itself.
    """
    squares = [math.fsum(sums[place] for place in _SQUARES) / _rows(sums) for sums in brokers]
    usual = median_low([each for each in squares if each > 2 * _ASSUMED[-1] ** 2] or [math.inf])
    return [
        [min(1.0, usual / square) * min(1.0, _ROWS_MAX / _rows(sums)) * each for each in sums]
        for sums, square in zip(brokers, squares, strict=True)
    ]


def _error(precision: Sequence[Sequence[float]], place: int) -> float:
    """Return the standard error of one share."""
    unit = [float(place == other) for other in range(_NUMBER)]
    return math.sqrt(max(0.0, _solved(precision, unit)[place]))


def _of_shares(shares: Sequence[float]) -> Coefficients:
    return Coefficients(
        **{
            each.name: share * assumed
            for each, share, assumed in zip(fields(ASSUMED), shares, _ASSUMED, strict=True)
        }
    )


def _are_sums(sums: Sequence[float]) -> bool:
    """Return whether these may be sums of products: their matrix has no negative pivot, as large as
    it counts.
    """
    return (
        len(sums) == SUMS
        and all(0 <= each <= _SUM_MAX for each in sums)
        and _rows(sums) > _ROWS_MIN
        and all(
            row[place] > 0
            for place, row in enumerate(
                _eliminated(_with_prior([each / _NOISE_CORES**2 for each in sums]))
            )
        )
    )


def _with_prior(sums: Sequence[float]) -> list[list[float]]:
    """Return the precision of the prior and of these sums."""
    precision = [list(row) for row in _PRECISION]
    for (one, other), value in zip(_PAIRS, sums, strict=False):
        precision[one][other] += value
        if one != other:
            precision[other][one] += value
    return precision


def _excess(sums: Sequence[float], shares: Sequence[float]) -> float:
    """Return the mean CPU use of a broker beyond what the shares explain, in cores."""
    of_process = [
        value for (_, other), value in zip(_PAIRS, sums, strict=False) if other == _NUMBER - 1
    ]
    explained = math.fsum(map(mul, of_process, shares))
    return (sums[-1] - explained) * _ASSUMED[-1] / of_process[-1]


def _weight(excess: float) -> float:
    """Return the weight of a broker that uses so much more than explained, for a quantile."""
    side = _QUANTILE if excess > 0 else 1 - _QUANTILE
    return 2 * side * _NOISE_CORES / max(abs(excess), _NOISE_CORES)


def _bounded(precision: list[list[float]], pull: list[float]) -> list[float]:
    """Return the minimum of the quadratic form within the bounds. What is outside is put on its
    bound, and the others are solved again: no optimum, but never nonsense.
    """
    fixed = dict[int, float]()
    while True:
        free = [place for place in range(_NUMBER) if place not in fixed]
        found = _solved(
            [[precision[one][other] for other in free] for one in free],
            [
                pull[one] - sum(precision[one][other] * share for other, share in fixed.items())
                for one in free
            ],
        )
        outside = {
            place: min(max(share, 1 / SHARE_MAX), SHARE_MAX)
            for place, share in zip(free, found, strict=True)
            if not 1 / SHARE_MAX <= share <= SHARE_MAX
        }
        if not outside:
            solved = dict(zip(free, found, strict=True)) | fixed
            return [solved[place] for place in range(_NUMBER)]
        fixed |= outside


def _solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve a system of equations whose matrix is symmetric and positive definite."""
    rows = _eliminated([[*row, value] for row, value in zip(matrix, right, strict=True)])
    found = list[float]()
    for place in range(len(rows) - 1, -1, -1):
        row = rows[place]
        rest = sum(row[place + 1 + later] * value for later, value in enumerate(reversed(found)))
        # Rounding may leave nothing of a pivot if many brokers report sums that cannot be.
        found.append((row[-1] - rest) / (row[place] or 1.0))
    return found[::-1]


def _eliminated(rows: list[list[float]]) -> list[list[float]]:
    """Bring a matrix to upper triangular form, in place. Return it."""
    for place, row in enumerate(rows):
        for other in rows[place + 1 :]:
            factor = other[place] / (row[place] or 1.0)
            for column in range(place, len(row)):
                other[column] -= factor * row[column]
    return rows
