"""Which tokens are accepted, and why others are refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.security.identity import TOKEN, Credentials, Fault, Identity, Refusal
from equipoise.brokers.security.tokens import (
    SECRET_BYTES_MIN,
    TOKEN_BYTES_MAX,
    Key,
    TokenVerifier,
    public_key,
    secret_key,
)
from tests.unit.security.signing import SECRET, token

NOW_S = 1_800_000_000.0
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
VERIFIER = TokenVerifier([secret_key(SECRET)])
ME = Identity(role="me", method=TOKEN, valid_ms=None)
TOKENS = [token(), token("another", exp=NOW_S + 60)]
FOREIGN = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER = b"another secret of 32 bytes or more"
WRONG_CLAIMS: tuple[dict[str, object], ...] = (
    {"exp": "tomorrow"},
    {"exp": True},
    {"nbf": []},
    {"exp": 10**400},
    {"sub": ""},
    {"sub": 7},
    {"sub": []},
    {"sub": "a\nb"},
)
AUDIENCES: tuple[str | list[str], ...] = ("orders", ["bills", "orders"])


def checked(
    text: str | bytes, verifier: TokenVerifier = VERIFIER, *, now_s: float = NOW_S
) -> Identity | Refusal:
    """Check a token."""
    data = text.encode() if isinstance(text, str) else text
    return verifier.check(Credentials(method=TOKEN, data=data), now_s)


def fault(
    text: str | bytes, verifier: TokenVerifier = VERIFIER, *, now_s: float = NOW_S
) -> Fault | None:
    """Why a token is refused; None if it is not."""
    found = checked(text, verifier, now_s=now_s)
    return found.fault if isinstance(found, Refusal) else None


def public_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, encoding: Encoding) -> bytes:
    return key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)


def unsigned(header: dict[str, object], claims: object = None) -> str:
    """A token with any header and an empty signature."""
    parts = (json.dumps(part).encode() for part in (header, claims or {"sub": "me"}))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def by(*keys: Key, **options: str) -> TokenVerifier:
    return TokenVerifier(keys, **options)


def of_rsa(encoding: Encoding = Encoding.DER) -> Key:
    return public_key(public_of(RSA_KEY, encoding))


SEVERAL = by(secret_key(SECRET), secret_key(OTHER), of_rsa(Encoding.PEM))


def raw(claims: object) -> str:
    """A signed token with any claims, which the library itself would not make."""
    return jwt.PyJWS().encode(json.dumps(claims).encode(), SECRET, algorithm="HS256")


@pytest.mark.parametrize(
    ("text", "verifier"),
    [
        *(
            (jwt.encode({"sub": "me"}, SECRET, algorithm=name), VERIFIER)
            for name in ("HS256", "HS384", "HS512")
        ),
        *(
            (jwt.encode({"sub": "me"}, RSA_KEY, algorithm=name), by(of_rsa(encoding)))
            for name in ("RS256", "RS384", "RS512")
            for encoding in (Encoding.DER, Encoding.PEM)
        ),
        *(
            (
                jwt.encode({"sub": "me"}, key, algorithm=name),
                by(public_key(public_of(key, Encoding.DER))),
            )
            for name, curve in CURVES.items()
            for key in [ec.generate_private_key(curve)]
        ),
        *((token(aud=aud), by(secret_key(SECRET), audience="orders")) for aud in AUDIENCES),
        (token(aud="bills"), VERIFIER),
        # Any of several keys may have signed it, of kinds that do not mix.
        (token(), SEVERAL),
        (token(key=OTHER), SEVERAL),
        (jwt.encode({"sub": "me"}, RSA_KEY, algorithm="RS512"), SEVERAL),
    ],
)
def test_a_token_of_a_known_key_is_accepted(text: str, verifier: TokenVerifier) -> None:
    assert ME == checked(text, verifier)


@pytest.mark.parametrize(
    ("text", "verifier", "expected"),
    [
        *(
            (unsigned({"alg": name, "typ": "JWT"}), VERIFIER, Fault.FORGED)
            for name in ("none", "None", "NONE", "", "HS256", "RS256", "made-up")
        ),
        (jwt.encode({"sub": "me"}, FOREIGN, algorithm="RS256"), by(of_rsa()), Fault.FORGED),
        (jwt.encode({"sub": "me"}, b"x" * 32, algorithm="HS256"), VERIFIER, Fault.FORGED),
        (token(exp=1, key=OTHER), SEVERAL, Fault.EXPIRED),
        (unsigned({"alg": "none"}), SEVERAL, Fault.FORGED),
        (jwt.encode({"sub": "me"}, FOREIGN, algorithm="RS256"), SEVERAL, Fault.FORGED),
        *((raw({"sub": "me"} | claims), VERIFIER, Fault.MALFORMED) for claims in WRONG_CLAIMS),
        (raw({"name": "me"}), VERIFIER, Fault.MALFORMED),
        (token("me"), by(secret_key(SECRET), claim="roles"), Fault.MALFORMED),
        *(
            (text, by(secret_key(SECRET), audience="orders"), Fault.UNKNOWN)
            for text in (token(aud="bills"), token())
        ),
        ("", VERIFIER, Fault.MISSING),
        # It is not even read.
        (token("me", padding="x" * TOKEN_BYTES_MAX), VERIFIER, Fault.MALFORMED),
    ],
)
def test_any_other_token_is_refused(text: str, verifier: TokenVerifier, expected: Fault) -> None:
    assert expected is fault(text, verifier)


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
def test_a_public_key_is_no_secret(encoding: Encoding) -> None:
    """An attacker who knows the public key signs with its bytes as a secret. The library refuses
    to, so the test signs by hand.
    """
    known = public_of(RSA_KEY, encoding)
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    head = unsigned({"alg": "HS256", "typ": "JWT"}).removesuffix(".")
    signature = base64.urlsafe_b64encode(algorithm.sign(head.encode(), known)).decode().rstrip("=")
    assert Fault.FORGED is fault(f"{head}.{signature}", TokenVerifier([public_key(known)]))
    with pytest.raises(ValueError, match="asymmetric key"):
        secret_key(known)


@given(st.sampled_from(TOKENS), st.data())
def test_a_token_with_any_change_is_refused(good: str, data: st.DataObject) -> None:
    """One character is replaced, added or removed, anywhere. The last one of a signature has bits
    that mean nothing.
    """
    place = data.draw(st.integers(0, len(good) - 2))
    other = data.draw(st.characters(codec="ascii"))
    changed = data.draw(
        st.sampled_from(
            [
                good[:place] + other + good[place + 1 :],
                good[:place] + other + good[place:],
                good[:place],
            ]
        )
    )
    if changed.strip() != good:
        assert isinstance(checked(changed), Refusal)


@given(
    st.binary(max_size=200)
    | st.lists(st.binary(max_size=40), min_size=2, max_size=4).map(b".".join)
)
def test_any_bytes_are_refused_and_never_an_error(data: bytes) -> None:
    assert isinstance(checked(data), Refusal)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
        max_leaves=5,
    )
)
def test_any_claims_have_a_verdict(value: Any) -> None:  # noqa: ANN401 - any JSON
    """A bearer of the key may sign anything."""
    for name in ("sub", "exp", "nbf", "aud"):
        assert isinstance(checked(raw({"sub": "me", name: value})), Identity | Refusal)
    assert isinstance(checked(raw(value)), Identity | Refusal)


def test_a_token_is_valid_from_its_first_to_before_its_last_second() -> None:
    text = token(nbf=NOW_S - 10, exp=NOW_S + 10)
    assert (Fault.EXPIRED, None) == (
        fault(text, now_s=NOW_S - 10.001),
        fault(text, now_s=NOW_S - 10),
    )
    assert Identity(role="me", method=TOKEN, valid_ms=10_000) == checked(text)
    assert (None, Fault.EXPIRED) == (
        fault(text, now_s=NOW_S + 9.999),
        fault(text, now_s=NOW_S + 10),
    )


def test_another_claim_may_hold_the_role() -> None:
    verifier = by(secret_key(SECRET), claim="roles")
    first = Identity(role="first", method=TOKEN, valid_ms=None)
    assert first == checked(token("me", roles=["first", "second"]), verifier)


UNUSABLE = {
    "nothing": b"",
    "no key": b"x" * 300,
    "no PEM": b"-----BEGIN PUBLIC KEY-----\nnone\n-----END PUBLIC KEY-----\n",
    # As the name says.
    "a short key": public_of(
        rsa.generate_private_key(public_exponent=65_537, key_size=1_024),  # noqa: S505
        Encoding.DER,
    ),
    "another curve": public_of(ec.generate_private_key(ec.SECP256K1()), Encoding.DER),
    "another kind": ed25519.Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    "a private key": RSA_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_public_key_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="RSA"):
        public_key(UNUSABLE[kind])


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        secret_key(b"x" * (SECRET_BYTES_MIN - 1))
    assert ("HS256",) == secret_key(b"x" * SECRET_BYTES_MIN).algorithms


def test_nothing_prints_a_secret() -> None:
    text = token()
    shown = [
        repr(secret_key(SECRET)),
        repr(Credentials(method=TOKEN, data=text.encode())),
        repr(checked(text + "x")),
    ]
    assert not [each for each in shown if text in each or str(SECRET) in each]
