"""How a broker reads its keys and tokens, and what it counts."""

from __future__ import annotations

import base64
import logging
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.security.gate import KEYS_MAX, Certificate, Gate, Proofs, read_key
from equipoise.brokers.security.identity import (
    BASIC,
    TLS,
    TOKEN,
    Credentials,
    Fault,
    Identity,
    Refusal,
    Surface,
)
from equipoise.brokers.security.own_token import (
    CA_VARIABLE,
    NO_TOKEN,
    TOKEN_VARIABLE,
    OwnToken,
    stranger_to_broker,
)
from equipoise.channel.core.errors import PeerError
from tests.unit.security.signing import SECRET, SECRET_URL, USERS, token

NOW_S = 1_800_000_000.0


def gate(counted: list[tuple[Surface, Fault]] | None = None, secret: str = SECRET_URL) -> Gate:
    """A gate for tokens of a secret key."""
    return gate_of(Proofs(token_secret_key=secret), counted)


def gate_of(
    proofs: Proofs,
    counted: list[tuple[Surface, Fault]] | None = None,
    failed: list[None] | None = None,
) -> Gate:
    """A gate whose clock shows `NOW_S`. It notes refusals, and failed reloads."""
    refusals, failures = [] if counted is None else counted, [] if failed is None else failed
    return Gate(
        proofs,
        broker="b",
        counted=lambda at, fault: refusals.append((at, fault)),
        reload_failed=lambda: failures.append(None),
        now_s=lambda: NOW_S,
    )


def fault_of(
    made: Gate, credentials: Credentials | None, certificate: Certificate | None = None
) -> Fault | None:
    """Why credentials are refused; None if they are not."""
    found = made.check(Surface.HTTP, credentials, certificate)
    return found.fault if isinstance(found, Refusal) else None


def sent(text: str) -> Credentials:
    """A token, or a user with a password."""
    return Credentials(method=BASIC if ":" in text else TOKEN, data=text.encode())


def certificate(*names: str, days: float = 1) -> Certificate:
    """A certificate of these common names, as `getpeercert` returns it."""
    subject = ((("organizationName", "Acme"),), *((("commonName", name),) for name in names))
    expires = datetime.fromtimestamp(NOW_S + days * 86_400, UTC).strftime("%b %d %H:%M:%S %Y GMT")
    return {
        "subject": subject,
        "notAfter": expires,
        "subjectAltName": (("DNS", "other.example.com"),),
    }


def test_each_form_of_a_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "my key"
    file.write_bytes(SECRET)
    plain = base64.b64encode(SECRET).decode()
    forms = (
        SECRET_URL,
        f"data:application/octet-stream;base64,{plain}",
        f"file://{tmp_path}/my%20key",
        f"file:{file}",
        str(file),
        plain,
    )
    assert [SECRET] * len(forms) == [read_key(form) for form in forms]


def test_the_path_of_a_missing_file_is_no_key() -> None:
    """It may be base64, too, and long enough for a key."""
    path = "/etc/hush/keys/" + "x" * 45
    assert len(base64.b64decode(path, validate=True)) == 45
    with pytest.raises(ValueError, match="not the path of a file") as caught:
        read_key(path)
    assert "hush" not in str(caught.value)
    assert b"\xff" * 33 == read_key("data:;base64," + "/" * 44)


@pytest.mark.parametrize(
    "given",
    ["data:,hush", "data:;base64,hush!", "file:///nowhere/hush", "hush!", "x" * 5_000 + "!"],
)
def test_the_error_of_an_unreadable_key_does_not_contain_it(given: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        gate(secret=given)
    assert str(caught.value).count("token_secret_key") == 1
    assert not [part for part in ("hush", "xxx") if part in str(caught.value)]


def test_refusals_are_counted_by_surface_and_reason() -> None:
    counted: list[tuple[Surface, Fault]] = []
    made = gate(counted)
    assert isinstance(
        made.check(Surface.HTTP, Credentials(method=TOKEN, data=token().encode())), Identity
    )
    made.check(Surface.HTTP, None)
    made.check(Surface.PULSAR, Credentials(method=BASIC, data=b"me:secret"))
    assert [(Surface.HTTP, Fault.MISSING), (Surface.PULSAR, Fault.UNKNOWN)] == counted


@pytest.mark.parametrize(
    ("own", "shown", "fails"),
    [
        (OwnToken(token("broker")), None, False),
        (OwnToken("basic:me:secret"), None, False),
        (NO_TOKEN, certificate("broker-1"), False),
        (NO_TOKEN, None, True),
        (NO_TOKEN, certificate(), True),
        (OwnToken(token("broker", exp=1)), None, True),
        (OwnToken("nonsense"), None, True),
        (OwnToken("basic:me:wrong"), None, True),
    ],
)
def test_a_broker_checks_its_own_credentials(
    tmp_path: Path, own: OwnToken, shown: Certificate | None, *, fails: bool
) -> None:
    """Nothing of it is counted as a refusal of a client."""
    counted: list[tuple[Surface, Fault]] = []
    made = gate_of(
        Proofs(
            token_secret_key=SECRET_URL, basic_passwords=users(tmp_path), certificate_roles=True
        ),
        counted,
    )
    told = "broker_token: other brokers would refuse this broker"
    with pytest.raises(InvalidConfig, match=told) if fails else nullcontext():
        made.check_own(own, shown)
    assert [] == counted


def test_a_token_file_of_a_broker_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="No such file"):
        gate().check_own(OwnToken(f"file://{tmp_path}/none"))


BASIC_HEADER = f"Basic {base64.b64encode(b'me:a colon: and a space').decode()}"


@pytest.mark.parametrize(
    ("given", "header"),
    [
        ("abc", "Bearer abc"),
        ("basic:me:a colon: and a space", BASIC_HEADER),
        (None, None),
    ],
)
def test_credentials_are_sent_as_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, header: str | None
) -> None:
    """Directly, in the environment, or in a file."""
    assert "abc" == OwnToken("token:abc").current()
    expected = {} if header is None else {"Authorization": header}
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    forms = [OwnToken(given)]
    if given is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, given)
        (tmp_path / "token").write_text(f"{given}\n", encoding="utf-8")
        forms.append(OwnToken(f"file:{tmp_path / 'token'}"))
    for own in (*forms, OwnToken.of_environment()):
        assert expected == own.headers("http://127.0.0.1")


def test_two_words_are_no_token() -> None:
    """An HTTP client would print them in its error."""
    with pytest.raises(PeerError, match="more than one word") as caught:
        OwnToken("first\nsecond").headers("http://127.0.0.1")
    assert "second" not in str(caught.value)


def test_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    own = OwnToken(f"file://{file}")
    for text in ("first\n", "second"):
        file.write_text(text, encoding="ascii")
        assert text.strip() == own.current()
    for bad in (b"", b"two tokens", b"\xff", b"basic:me:first\nsecond"):
        file.write_bytes(bad)
        with pytest.raises(PeerError, match="token file"):
            own.current()


# --- several methods ---


def test_missing_and_unknown_credentials_are_told_apart() -> None:
    """What a client says instead of a method may be a secret, so only words are repeated."""
    made = gate()
    assert [Fault.MISSING, Fault.MISSING] == [fault_of(made, each) for each in (None, sent(""))]
    for method, is_named in (
        ("athenz", True),
        ("eyJhbGciOiJIUzI1NiJ9.e30", False),
        ("x" * 17, False),
    ):
        found = made.check(Surface.HTTP, Credentials(method=method, data=b"x"))
        assert isinstance(found, Refusal)
        assert (Fault.UNKNOWN, is_named) == (found.fault, method in found.problem)


async def test_a_client_says_by_which_method_it_proves_itself(tmp_path: Path) -> None:
    """All three are on. A token wins over a certificate, because the client sent it."""
    counted: list[tuple[Surface, Fault]] = []
    made = gate_of(
        Proofs(
            token_secret_key=SECRET_URL, basic_passwords=users(tmp_path), certificate_roles=True
        ),
        counted,
    )
    shown = certificate("orders")
    found = [
        await made.checked(Surface.PULSAR, sent(token("billing")), shown, client="c"),
        await made.checked(Surface.PULSAR, sent("me:secret"), shown, client="c"),
        await made.checked(
            Surface.PULSAR, Credentials(method=TLS, data=b"ignored"), shown, client="c"
        ),
        await made.checked(Surface.PULSAR, None, shown, client="c"),
    ]
    day_ms = 86_400_000
    assert [
        ("billing", TOKEN, None),
        ("me", BASIC, None),
        ("orders", TLS, day_ms),
        ("orders", TLS, day_ms),
    ] == [(each.role, each.method, each.valid_ms) for each in found if isinstance(each, Identity)]
    assert [] == counted
    assert Fault.WRONG is getattr(
        await made.checked(Surface.PULSAR, sent("me:secrets"), shown, client="c"), "fault", None
    )
    assert [(Surface.PULSAR, Fault.WRONG)] == counted


@pytest.mark.parametrize("method", [TOKEN, BASIC, TLS])
def test_a_method_that_is_off_is_refused(method: str, tmp_path: Path) -> None:
    """Also with a good certificate, which alone proves nothing then."""
    passwords = Proofs(basic_passwords=users(tmp_path))
    proofs = {
        TOKEN: Proofs(token_secret_key=SECRET_URL),
        BASIC: passwords,
        TLS: Proofs(certificate_roles=True),
    }
    for on, settings in proofs.items():
        made = gate_of(settings)
        given = {
            TOKEN: sent(token()),
            BASIC: sent("me:secret"),
            TLS: Credentials(method=TLS, data=b""),
        }[method]
        assert (Fault.UNKNOWN if on != method else None) == fault_of(made, given, certificate("me"))
    assert Fault.MISSING is fault_of(
        gate_of(Proofs(token_secret_key=SECRET_URL)), None, certificate("me")
    )


def test_the_advice_names_the_methods_that_are_on(tmp_path: Path) -> None:
    found = gate_of(Proofs(basic_passwords=users(tmp_path), certificate_roles=True)).check(
        Surface.HTTP, None
    )
    assert isinstance(found, Refusal)
    assert (
        "there are no credentials; send a user and a password, or connect with a certificate"
        == found.problem
    )


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        (None, Fault.MISSING),
        ({}, Fault.MISSING),
        (certificate(), Fault.MALFORMED),
        (certificate("one", "two"), Fault.MALFORMED),
        (certificate("line\nbreak"), Fault.MALFORMED),
        (certificate("x" * 1_025), Fault.MALFORMED),
        (certificate(""), Fault.MALFORMED),
        (certificate("me", days=-1), Fault.EXPIRED),
        (certificate("CN=me, O=Acme"), None),
    ],
)
def test_a_certificate_without_one_role_is_refused(
    shown: Certificate | None, fault: Fault | None
) -> None:
    made = gate_of(Proofs(certificate_roles=True))
    assert fault == fault_of(made, Credentials(method=TLS, data=b"me"), shown)


# --- files that change ---


def users(folder: Path, text: str = USERS) -> str:
    """Write a password file, and return its path."""
    file = folder / "passwords"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_keys_of_a_folder_are_replaced_without_an_interruption(tmp_path: Path) -> None:
    """Both keys are good while both are there, and tokens of a removed key are forged."""
    folder = tmp_path / "keys"
    folder.mkdir()
    old, new = folder / "2026.key", folder / "2027.key"
    old.write_bytes(SECRET)
    (folder / "..data").mkdir()
    made = gate_of(Proofs(token_secret_key=f"file://{folder}"))
    fresh = b"another secret, which also has at least 32 bytes"

    def faults() -> list[Fault | None]:
        made.look()
        return [fault_of(made, sent(token(key=key))) for key in (SECRET, fresh, b"x" * 32)]

    assert [None, Fault.FORGED, Fault.FORGED] == faults()
    new.write_bytes(fresh)
    assert [None, None, Fault.FORGED] == faults()
    old.unlink()
    assert [Fault.FORGED, None, Fault.FORGED] == faults()


def test_files_that_cannot_be_used_change_nothing_and_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, failed = tmp_path / "key", list[None]()
    file.write_bytes(SECRET)
    made = gate_of(
        Proofs(token_secret_key=str(file), basic_passwords=users(tmp_path)), failed=failed
    )
    with caplog.at_level(logging.INFO):
        for damage in (
            file.unlink,
            lambda: file.write_bytes(b"hush"),
            lambda: users(tmp_path, "hush"),
        ):
            damage()
            made.look()
            made.look()
            assert fault_of(made, sent(token())) is None
        assert 3 == len(failed) == len(caplog.records)
        assert "hush" not in caplog.text
        file.write_bytes(SECRET)
        users(tmp_path, "")
        made.look()
    assert "keys and users reloaded" == caplog.records[-1].getMessage()
    assert Fault.WRONG is fault_of(made, sent("me:secret"))


def test_passwords_are_in_one_file(tmp_path: Path) -> None:
    """Otherwise the users of the second would be refused, and no one would know why."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(USERS, encoding="utf-8")
    with pytest.raises(InvalidConfig, match="basic_passwords: it is a folder of several files"):
        gate_of(Proofs(basic_passwords=str(tmp_path)))


@pytest.mark.parametrize("count", [0, KEYS_MAX + 1])
def test_a_folder_has_a_bounded_number_of_keys(count: int, tmp_path: Path) -> None:
    for number in range(count):
        (tmp_path / str(number)).write_bytes(SECRET)
    with pytest.raises(InvalidConfig, match=f"token_secret_key: its folder has {count} files"):
        gate(secret=str(tmp_path))


STRANGERS: tuple[tuple[str, str | None, bool, bool], ...] = (
    # The URL, the broker's own, whether it has a CA of its own, whether the URL gets the token.
    ("https://any.example:8080", "https://b1.example:8080", True, True),
    ("http://b2.example:8080", "https://b1.example:8080", True, False),
    ("http://127.0.0.1:9", "https://127.0.0.1:8080", True, False),
    ("https://evil.example", "https://b1.cluster.example", False, False),
    ("https://b2.cluster.example", "https://b1.cluster.example", False, True),
    ("https://evil.com", "https://own.com", False, False),
    ("http://b2.cluster.example", "http://b1.cluster.example", False, True),
    ("http://evil.example", "http://b1.cluster.example", False, False),
    ("http://b2:8080", "http://b1:8080", False, True),
    ("http://10.0.0.8", "http://10.0.0.7", False, True),
    ("http://8.8.8.8", "http://10.0.0.7", False, False),
    ("http://169.254.169.254", "http://10.0.0.7", False, False),
    ("http://[::1]:1", "http://127.0.0.1:8080", False, True),
    ("http://10.0.0.8", "http://127.0.0.1:8080", False, False),
    ("http://b2", "http://localhost:8080", False, False),
    ("http://10.0.0.8", None, False, False),
    ("http://localhost:8080", None, False, True),
    ("nonsense", "http://127.0.0.1:8080", False, False),
    ("http://[::1", "http://127.0.0.1:8080", False, False),
)


@pytest.mark.parametrize(("url", "own", "has_ca", "gets_it"), STRANGERS)
def test_a_broker_sends_its_token_only_to_hosts_that_something_vouches_for(
    url: str, own: str | None, *, has_ca: bool, gets_it: bool
) -> None:
    """A record on the log names the address, and any writer of the log can forge one."""
    own_token = OwnToken("secret", partial(stranger_to_broker, own=own, has_ca=has_ca))
    if gets_it:
        assert {"Authorization": "Bearer secret"} == own_token.headers(url)
    else:
        with pytest.raises(PeerError, match="the token is not sent to"):
            own_token.headers(url)
    assert {} == OwnToken(None, partial(stranger_to_broker, own=own, has_ca=has_ca)).headers(url)


def test_a_command_sends_no_token_without_tls_where_it_has_the_ca_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for has_ca, url, gets_it in (
        (False, "http://b", True),
        (True, "http://b", False),
        (True, "https://b", True),
    ):
        monkeypatch.setenv(CA_VARIABLE, "ca.pem" if has_ca else "")
        if gets_it:
            assert OwnToken("secret").headers(url)
        else:
            with pytest.raises(PeerError, match="EQUIPOISE_TLS_CA is set"):
                OwnToken("secret").headers(url)


# --- proxies ---

ASKED_FOR = [
    ("me", None, None),
    ("me", " ", None),
    ("me", "me", None),
    ("me", "root", Fault.PROXY),
    ("me", "proxy", Fault.PROXY),
    ("proxy", None, Fault.PROXY),
    ("proxy", "", Fault.PROXY),
    ("proxy", " ", Fault.PROXY),
    ("proxy", "proxy", Fault.PROXY),
    ("proxy", "gateway", Fault.PROXY),
    ("proxy", "two\nroles", Fault.MALFORMED),
    ("proxy", "x" * 1_025, Fault.MALFORMED),
]


@pytest.mark.parametrize(("role", "original", "fault"), ASKED_FOR)
def test_only_a_proxy_names_another_role_and_must(
    role: str, original: str | None, fault: Fault | None
) -> None:
    counted: list[tuple[Surface, Fault]] = []
    made = gate_of(Proofs(token_secret_key=SECRET_URL, proxy_roles=("proxy", "gateway")), counted)
    asked = Credentials(method=TOKEN, data=token(role).encode(), original=original)
    assert fault is fault_of(made, asked)
    assert ([] if fault is None else [(Surface.HTTP, fault)]) == counted


@pytest.mark.parametrize("method", [TOKEN, BASIC, TLS])
async def test_the_client_of_a_proxy_has_its_own_role_whatever_proves_the_proxy(
    tmp_path: Path, method: str
) -> None:
    made = gate_of(
        Proofs(
            token_secret_key=SECRET_URL,
            basic_passwords=users(tmp_path),
            certificate_roles=True,
            proxy_roles=("me",),
        ),
    )
    data = {TOKEN: token("me"), BASIC: "me:secret", TLS: ""}[method].encode()
    asked = Credentials(method=method, data=data, original="billing")
    found = await made.checked(Surface.PULSAR, asked, certificate("me"), client="c")
    assert isinstance(found, Identity)
    assert ("billing", "me", ("billing", "me")) == (found.role, found.proxy, found.roles)
