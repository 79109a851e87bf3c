"""Controls over HTTP: they are set with who asked, shown, and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import SetClusterPolicy
from equipoise.brokers.balancing.policies import quarantine_document, quarantine_key
from equipoise.channel.core.records import PolicyRecord
from tests.unit.http.cluster import NAMESPACE, PATIENCE_MS, Broker, cluster, post, told, until

pytestmark = pytest.mark.integration

CONTROLS = "/admin/v2/controls"


async def shown(broker: Broker) -> dict[str, object]:
    """Return what a broker shows of its controls."""
    document = (await broker.get(CONTROLS)).json()
    assert isinstance(document, dict)
    return document


LATER_MS = 2_000_000_000_000
NOTHING: dict[str, object] = {"pause": None, "freezes": [], "maintenances": [], "quarantines": []}


async def test_controls_are_set_shown_and_ended(tmp_path: Path) -> None:
    """Each record names who asked. The broker's clock counts until the end."""
    asked: list[str | None] = []
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        first, second = brokers.brokers
        end = first.worker.listen(
            lambda folded: (
                asked.append(folded.record.requested_by)
                if isinstance(folded.record, PolicyRecord)
                else None
            )
        )
        assert NOTHING == await shown(first)
        given = {"reason": "new disks", "for_ms": 3_600_000}
        before_ms = first.worker.clock.now().wall_ms
        assert 204 == (await post(first, f"{CONTROLS}/pause", given)).status
        pause = (await shown(first))["pause"]
        assert isinstance(pause, dict)
        assert ("new disks", 0) == (pause["reason"], (pause["until_ms"] - before_ms) // 3_600_500)
        for path in (f"freeze/{NAMESPACE}", f"maintenance/{second.id}"):
            assert 204 == (await post(first, f"{CONTROLS}/{path}", {"reason": "a sale"})).status
        await until(
            lambda: not brokers.view.held_count(brokers.view.brokers[second.id].incarnation)
        )
        bundle = brokers.bundles()[0]
        quarantine = SetClusterPolicy(
            policy=quarantine_key(bundle),
            document=quarantine_document(
                "it fails", hold_ms=60_000, until_ms=LATER_MS, evidence=[7]
            ),
        )
        await first.worker.request(quarantine, timeout_ms=PATIENCE_MS)
        document = await shown(first)
        for kind, expected in (
            ("freezes", {"namespace": NAMESPACE, "reason": "a sale", "until_ms": None}),
            (
                "maintenances",
                {
                    "id": second.id,
                    "of": "broker",
                    "reason": "a sale",
                    "until_ms": None,
                    "brokers": [second.id],
                    "bundles": 0,
                },
            ),
            (
                "quarantines",
                {
                    "bundle": bundle,
                    "reason": "it fails",
                    "until_ms": LATER_MS,
                    "evidence": [7],
                    "state": "owned",
                },
            ),
        ):
            controls = document[kind]
            assert isinstance(controls, list)
            (control,) = controls
            assert expected == {name: value for name, value in control.items() if name != "last"}
        status, shown_brokers = (
            (await second.get("/ready")).json(),
            (await first.get("/v1/brokers")).json(),
        )
        one = (await first.get(f"/v1/bundle/{bundle}")).json()
        assert isinstance(status, dict)
        assert isinstance(shown_brokers, list)
        assert isinstance(one, dict)
        assert "a sale" == status["maintenance"]
        assert {first.id: None, second.id: "a sale"} == {
            each["broker"]: each["maintenance"] for each in shown_brokers
        }
        assert ("it fails", "a sale") == (one["quarantine"], one["frozen"])
        for path in (
            "pause",
            f"freeze/{NAMESPACE}",
            f"maintenance/{second.id}",
            f"quarantine/{bundle}",
        ):
            assert 204 == (await first.ask("DELETE", f"{CONTROLS}/{path}")).status
            assert (404, "NotFound") == told(await first.ask("DELETE", f"{CONTROLS}/{path}"))
        assert NOTHING == await shown(first)
        end()
    assert [None] == [each for each in asked if each is None or not each.startswith("admin:")]


async def test_a_failure_domain_is_put_in_maintenance(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        first, second = brokers.brokers
        assert (
            204
            == (
                await post(
                    first,
                    "/admin/v2/clusters/equipoise/failureDomains/rack",
                    {"brokers": [second.id]},
                )
            ).status
        )
        assert (
            204
            == (
                await post(first, f"{CONTROLS}/domain-maintenance/rack", {"reason": "power"})
            ).status
        )
        await until(
            lambda: not brokers.view.held_count(brokers.view.brokers[second.id].incarnation)
        )
        assert 204 == (await first.ask("DELETE", f"{CONTROLS}/domain-maintenance/rack")).status


IMPOSSIBLE: tuple[tuple[str, object, int, str], ...] = (
    ("pause", {"reason": "x"}, 400, "a pause must have an end"),
    ("pause", None, 400, "it must be an object with a reason"),
    ("pause", {"reason": "x", "for_ms": 0}, 400, "for_ms"),
    ("pause", {"reason": "", "for_ms": 1}, 412, "reason is ''"),
    ("freeze/no/where", {"reason": "x"}, 404, "no/where"),
    ("maintenance/nobody:1", {"reason": "x"}, 404, "has ever joined"),
    ("domain-maintenance/nowhere", {"reason": "x"}, 404, "failure domain"),
)


async def test_impossible_controls_are_refused(tmp_path: Path) -> None:
    """So is the maintenance of the only broker."""
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for path, body, status, problem in (
            *IMPOSSIBLE,
            (f"maintenance/{broker.id}", {"reason": "x"}, 409, "no other broker"),
        ):
            answer = await post(broker, f"{CONTROLS}/{path}", body)
            assert (status, True) == (answer.status, problem in answer.reason), answer.reason
        assert NOTHING == await shown(broker)
