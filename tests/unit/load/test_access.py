"""Settings of Kafka's client that a load worker supports, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from equipoise.brokers.load.worker.access import KafkaAccess, Password, Tls, Tokens, access_of
from equipoise.channel.core.errors import CallerError

SASL = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "worker", "sasl.password": "secret"}
PASSWORD = Password(mechanism="SCRAM-SHA-512", username="worker", password=SASL["sasl.password"])
SYSTEM = Tls(
    authorities=None,
    certificate=None,
    key=None,
    key_password=None,
    verifies_certificate=True,
    verifies_host=True,
)
FILES = {
    "ssl.ca.location": "ca.pem",
    "ssl.certificate.location": "crt.pem",
    "ssl.key.location": "key.pem",
    "ssl.key.password": "secret",
}

OAUTH = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
    "sasl.oauthbearer.client.id": "worker",
    "sasl.oauthbearer.client.secret": "secret",
}
TOKENS = Tokens(
    endpoint="https://login/token",
    client_id="worker",
    client_secret=OAUTH["sasl.oauthbearer.client.secret"],
    scope=None,
    extensions={},
    authorities=None,
)

TAKEN: Mapping[str, tuple[Mapping[str, str], KafkaAccess]] = {
    "nothing": ({}, KafkaAccess(login=None, tls=None)),
    "what tunes librdkafka only": (
        {"socket.timeout.ms": "1000", "debug": "all"},
        KafkaAccess(login=None, tls=None),
    ),
    "a password in the clear": (
        {"security.protocol": "sasl_plaintext", **SASL},
        KafkaAccess(login=PASSWORD, tls=None),
    ),
    "a password under TLS": (
        {"security.protocol": "SASL_SSL", **SASL},
        KafkaAccess(login=PASSWORD, tls=SYSTEM),
    ),
    "settings of SASL without it": (
        {"security.protocol": "ssl", **SASL},
        KafkaAccess(login=None, tls=SYSTEM),
    ),
    "where the system keeps its own": (
        {"security.protocol": "ssl", "ssl.ca.location": "probe"},
        KafkaAccess(login=None, tls=SYSTEM),
    ),
    "tokens": (OAUTH, KafkaAccess(login=TOKENS, tls=SYSTEM)),
    "tokens with all details": (
        {
            **OAUTH,
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "a=1,b=2",
            "https.ca.location": "login.pem",
        },
        KafkaAccess(
            login=replace(
                TOKENS, scope="kafka", extensions={"a": "1", "b": "2"}, authorities="login.pem"
            ),
            tls=SYSTEM,
        ),
    ),
    "files": (
        {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none", **FILES},
        KafkaAccess(
            login=None,
            tls=Tls(
                authorities="ca.pem",
                certificate="crt.pem",
                key="key.pem",
                key_password=FILES["ssl.key.password"],
                verifies_certificate=True,
                verifies_host=False,
            ),
        ),
    ),
    "no verification": (
        {"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"},
        KafkaAccess(
            login=None,
            tls=Tls(
                authorities=None,
                certificate=None,
                key=None,
                key_password=None,
                verifies_certificate=False,
                verifies_host=False,
            ),
        ),
    ),
}

REFUSED: Mapping[str, tuple[Mapping[str, str], str, str]] = {
    "another protocol": (
        {"security.protocol": "tls"},
        "security.protocol",
        "must be one of plaintext, ssl",
    ),
    "Kerberos": (
        {"security.protocol": "sasl_ssl"},
        "sasl.mechanisms",
        "can do PLAIN, SCRAM-SHA-256, .* OAUTHBEARER, and not GSSAPI",
    ),
    "tokens from nowhere": (
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"},
        "sasl.oauthbearer.method",
        "needs it",
    ),
    "tokens from elsewhere": (
        {**OAUTH, "sasl.oauthbearer.method": "default"},
        "sasl.oauthbearer.method",
        "must be oidc",
    ),
    "no secret": (
        {name: value for name, value in OAUTH.items() if not name.endswith("secret")},
        "sasl.oauthbearer.client.secret",
        "OAUTHBEARER needs it",
    ),
    "no extensions": (
        {**OAUTH, "sasl.oauthbearer.extensions": "a"},
        "sasl.oauthbearer.extensions",
        "NAME=VALUE",
    ),
    "another way to a token": (
        {**OAUTH, "sasl.oauthbearer.grant.type": "x"},
        "sasl.oauthbearer.grant.type",
        "does not know it",
    ),
    "no name": (
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"},
        "sasl.username",
        "PLAIN needs it",
    ),
    "what it does not know": (
        {"ssl.ca.pem": "-----"},
        "ssl.ca.pem",
        "a load worker does not know it; it knows enable.ssl",
    ),
    "no truth": (
        {"security.protocol": "ssl", "enable.ssl.certificate.verification": "maybe"},
        "enable.ssl",
        "true or false",
    ),
    "another check": (
        {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "x"},
        "ssl.endpoint",
        "https or none",
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_supported_setting_is_translated(case: str) -> None:
    """Access settings have a counterpart. Settings that tune librdkafka do not matter."""
    given, expected = TAKEN[case]
    assert expected == access_of(given)


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsupported_setting_is_refused(case: str) -> None:
    """A load worker never connects in another way than the user configured. The error names the
    setting.
    """
    given, setting, problem = REFUSED[case]
    with pytest.raises(CallerError, match=f"'{setting}.*{problem}"):
        access_of(given)


def test_secrets_are_not_shown() -> None:
    for settings in ({"security.protocol": "sasl_ssl", **SASL, **FILES}, OAUTH):
        shown = repr(access_of(settings))
        assert "worker" in shown
        assert "secret" not in shown
