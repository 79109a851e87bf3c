"""No secret that a broker has, or that a client sends, appears in log lines, answers, metrics,
errors or `repr`.

`tests.planted` watches the log lines of every test.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.identity import Credentials
from equipoise.brokers.security.own_token import OwnToken
from equipoise.channel.log.open_log import open_log
from tests.planted import Watch, leaks_in, planted
from tests.pulsar.pulsar_speech import connect, lookup
from tests.unit.http.cluster import cluster
from tests.unit.pulsar.wire_client import brokers
from tests.unit.security.signing import SECRET, SETTINGS, bearer, token

MARK = planted("planted-secret")
BAD = (MARK, f"{token()}{MARK}", token(exp=1), token(key=b"x" * 32), f"{MARK} {MARK}")
PATHS = (
    "/admin/v2/brokers/configuration/runtime",
    "/admin/v2/brokers",
    "/metrics",
    "/ready",
    f"/admin/v2/tenants?token={MARK}",
    "/nowhere",
)


@pytest.mark.integration
async def test_requests_over_http_leave_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        bad = [
            {"Authorization": f"{scheme} {text}"}
            for text in BAD
            for scheme in ("Bearer", "Basic", MARK)
        ]
        for headers in (bearer(token()), {}, *bad):
            for path in PATHS:
                answer = await broker.ask("GET", path, headers=headers)
                assert not leaks_in(f"{answer.body!r} {answer.headers}"), path
        worker = broker.worker
        values = (
            worker,
            worker.config,
            worker.access.gate,
            worker.access.own_token,
            vars(worker),
            vars(worker.access.gate),
            worker.config.model_dump_json(),
        )
        assert not leaks_in(" ".join(map(repr, values)) + str(worker.config))


@pytest.mark.integration
async def test_clients_on_the_wire_leave_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with brokers(tmp_path, config=SETTINGS, token=token()) as running:
        for text in (*BAD, token()):
            client = await running.members[0].client(handshake=False)
            client.write(connect(token=text) + lookup(1))
            if text == token():
                break
            await client.closed()
            assert not leaks_in(repr(client.inbox))
        lines = [record for record in caplog.records if "refused a client" in record.getMessage()]
        assert {("pulsar", "CONNECT", "127.0.0.1")} == {
            (line.__dict__["surface"], line.__dict__["what"], line.__dict__["client"])
            for line in lines
        }
        assert {"malformed", "expired", "forged"} == {line.__dict__["fault"] for line in lines}


MISTAKES: dict[str, Callable[[Path], object]] = {
    "a key that is no base64": lambda folder: of(folder, token_secret_key=f"data:;base64,!{MARK}!"),
    "a key in a data URL without base64": lambda folder: of(
        folder, token_secret_key=f"data:,{MARK}"
    ),
    "a key that is too short": lambda folder: of(
        folder, token_secret_key="data:;base64,cGxhbnRlZC1zZWNyZXQ="
    ),
    "a key that is no text": lambda folder: of(folder, token_secret_key=[MARK]),
    "a token of two words": lambda folder: of(folder, broker_token=f"{MARK} {MARK}"),
    "a token of another key": lambda folder: of(
        folder, broker_token=f"{token(key=b'x' * 32)}{MARK}"
    ),
    "a password in the URL of a log": lambda _: open_log(
        f"kafka://user:{MARK}@127.0.0.1:1/topic", create=False
    ),
    "a file of a token with two words": lambda folder: OwnToken(
        f"file://{folder / 'token'}"
    ).headers("http://127.0.0.1"),
}


def of(folder: Path, **settings: object) -> Worker:
    config = WorkerConfig.model_validate(
        {"log_url": "memory:x", "data_dir": folder, **SETTINGS, **settings}
    )
    return Worker(config, {}, addresses={})


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_errors_show_no_secret(mistake: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{MARK} {MARK}")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many types
        mistake(tmp_path)
    assert not leaks_in(f"{caught.value} {caught.value!r}")


def test_credentials_show_no_secret() -> None:
    assert not leaks_in(repr((Credentials(method="token", data=SECRET), OwnToken(MARK))))


@pytest.mark.parametrize(
    "about", [{"msg": MARK}, {"msg": "got %s", "args": (SECRET,)}, {"msg": "got it", "token": MARK}]
)
def test_the_watch_sees_text_arguments_and_fields(about: dict[str, object]) -> None:
    watch = Watch()
    watch.emit(logging.makeLogRecord(about))
    assert 1 == len(watch.take())
    assert [] == watch.take()
