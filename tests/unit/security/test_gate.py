"""How a broker reads its keys and tokens, and what it counts."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.security.gate import Gate, open_gate, read_key
from equipoise.brokers.security.identity import TOKEN, Credentials, Fault, Identity, Surface
from equipoise.brokers.security.own_token import NO_TOKEN, TOKEN_VARIABLE, OwnToken
from equipoise.channel.core.errors import PeerError
from tests.unit.security.signing import SECRET, SECRET_URL, token


def gate(counted: list[tuple[Surface, Fault]] | None = None, secret: str = SECRET_URL) -> Gate:
    """A gate for tokens of a secret key."""
    note = [] if counted is None else counted
    return open_gate(secret=secret, public=None, claim="sub", audience=None, counted=lambda at, fault: note.append((at, fault)))


def test_each_form_of_a_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "my key"
    file.write_bytes(SECRET)
    plain = base64.b64encode(SECRET).decode()
    forms = (SECRET_URL, f"data:application/octet-stream;base64,{plain}", f"file://{tmp_path}/my%20key", f"file:{file}", str(file), plain)
    assert [SECRET] * len(forms) == [read_key(form) for form in forms]


@pytest.mark.parametrize("given", ["data:,hush", "data:;base64,hush!", "file:///nowhere/hush", "hush!", "x" * 5_000 + "!"])
def test_the_error_of_an_unreadable_key_does_not_contain_it(given: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        gate(secret=given)
    assert str(caught.value).count("token_secret_key") == 1
    assert not [part for part in ("hush", "xxx") if part in str(caught.value)]


def test_refusals_are_counted_by_surface_and_reason() -> None:
    counted: list[tuple[Surface, Fault]] = []
    made = gate(counted)
    assert isinstance(made.check(Surface.HTTP, Credentials(method=TOKEN, data=token().encode())), Identity)
    made.check(Surface.HTTP, None)
    made.check(Surface.PULSAR, Credentials(method="basic", data=b"me:secret"))
    assert [(Surface.HTTP, Fault.MISSING), (Surface.PULSAR, Fault.UNKNOWN)] == counted


def test_a_broker_checks_its_own_token(tmp_path: Path) -> None:
    counted: list[tuple[Surface, Fault]] = []
    made = gate(counted)
    made.check_own(OwnToken(token("broker")))
    for bad in (NO_TOKEN, OwnToken(token("broker", exp=1)), OwnToken("nonsense")):
        with pytest.raises(InvalidConfig, match="broker_token"):
            made.check_own(bad)
    with pytest.raises(PeerError, match="No such file"):
        made.check_own(OwnToken(f"file://{tmp_path}/none"))
    assert [] == counted


def test_a_token_is_sent_as_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "abc")
    given = (OwnToken("abc"), OwnToken("token:abc"), OwnToken.of_environment())
    assert [{"Authorization": "Bearer abc"}] * 3 == [each.headers() for each in given]
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert ({}, {}) == (NO_TOKEN.headers(), OwnToken.of_environment().headers())


def test_two_words_are_no_token() -> None:
    """An HTTP client would print them in its error."""
    with pytest.raises(PeerError, match="more than one word") as caught:
        OwnToken("first\nsecond").headers()
    assert "second" not in str(caught.value)


def test_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="ascii")
    own = OwnToken(f"file://{file}")
    assert "first" == own.current()
    file.write_text("second", encoding="ascii")
    assert "second" == own.current()
    for bad in (b"", b"two tokens", b"\xff"):
        file.write_bytes(bad)
        with pytest.raises(PeerError, match="token file"):
            own.current()
