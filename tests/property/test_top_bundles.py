"""The busiest bundles of a report, against a slow model that ranks them all."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.vectors.top_k_bundles import top_bundles

# A few values on either side of a step, so that ties of one, of some and of all figures are common.
BYTES = st.sampled_from([0.0, 49_999.0, 50_000.0, 149_999.0, 150_000.0])
BAD = st.sampled_from([float("nan"), float("inf"), -1.0, 1e300])
COUNTS = st.sampled_from([0, 1, 499, 500, 1_000])
NAMESPACES = st.sampled_from(["t/a", "t/a", "t/b", "pulsar/system"])


def traffics(figures: st.SearchStrategy[float]) -> st.SearchStrategy[Traffic]:
    """Traffic of such figures."""
    return st.builds(
        Traffic,
        bytes_in_per_second=figures,
        bytes_out_per_second=figures,
        messages_in_per_second=figures,
        messages_out_per_second=figures,
    )


@st.composite
def reports(draw: st.DrawFn) -> list[BundleTraffic]:
    """Up to a dozen bundles: some are idle, some belong to the system namespace, and some have
    impossible figures.
    """
    sound = traffics(BYTES)
    traffic = st.one_of(sound, sound, sound, traffics(st.one_of(BYTES, BAD)))
    bundles = st.builds(
        BundleTraffic,
        bundle=NAMESPACES,
        traffic=traffic,
        topics=COUNTS,
        consumers=COUNTS,
        cache_bytes=BYTES.map(int),
    )
    drawn = draw(st.lists(bundles, max_size=12))
    return [
        replace(bundle, bundle=f"{bundle.bundle}/0x{place:08x}_0x{place + 1:08x}")
        for place, bundle in enumerate(drawn)
    ]


def model(bundles: list[BundleTraffic], at_most: int) -> list[str]:
    """Rank all bundles that may be reported, and return the first `at_most`."""
    fit = [
        bundle
        for bundle in bundles
        if not bundle.bundle.startswith("pulsar/system/")
        and 0 < bundle.traffic.bytes_per_second <= 1e18
        and 0 <= bundle.traffic.messages_per_second <= 1e18
    ]
    heaviest_first = sorted(
        sorted(fit, key=lambda bundle: bundle.bundle), key=figures_of, reverse=True
    )
    return [bundle.bundle for bundle in heaviest_first[:at_most]][::-1]


def figures_of(bundle: BundleTraffic) -> tuple[int, ...]:
    """The compared figures, in whole steps."""
    traffic = bundle.traffic
    return (
        int((traffic.bytes_in_per_second + 50_000) // 100_000),
        int((traffic.bytes_out_per_second + 50_000) // 100_000),
        int((traffic.messages_per_second + 50) // 100),
        (bundle.topics + bundle.consumers + bundle.producers) // 500,
        bundle.cache_bytes // 100_000,
    )


@given(
    reports(), st.one_of(st.integers(0, 3), st.integers(0, 14)), st.randoms(use_true_random=False)
)
def test_the_choice_is_that_of_the_slow_model(
    bundles: list[BundleTraffic], at_most: int, chance: random.Random
) -> None:
    """The order of the bundles does not matter."""
    expected = model(bundles, at_most)
    assert expected == [bundle.bundle for bundle in top_bundles(bundles, at_most=at_most)]
    shuffled = chance.sample(bundles, len(bundles))
    assert expected == [bundle.bundle for bundle in top_bundles(shuffled, at_most=at_most)]
