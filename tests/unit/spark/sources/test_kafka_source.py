"""Test the translation of Kafka settings and positions for Spark's connector."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.channel.kafka.settings import address_of
from equipoise.spark_jobs.sources.kafka_source import (
    connector_options,
    pattern_of,
    starting_offsets,
    topics_of,
)

FILES = {"ca.pem": "AUTHORITY", "cert.pem": "CERTIFICATE", "key.pem": "KEY"}


def read(path: str) -> str:
    """The text of a file that is there; `OSError` for others."""
    if path not in FILES:
        raise FileNotFoundError(path)
    return FILES[path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    settings: Mapping[str, str]
    options: Mapping[str, str]


MAPPED = {
    "nothing": Mapped(settings={}, options={}),
    "what tunes the other client alone": Mapped(
        settings={"queue.buffering.max.messages": "7"}, options={}
    ),
    "a password": Mapped(
        settings={
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "erin",
            "sasl.password": 'a"b\\c',
            "ssl.ca.location": "ca.pem",
        },
        options={
            "kafka.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="erin" password="a\\"b\\\\c";'
            ),
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.certificates": "AUTHORITY",
            "kafka.ssl.truststore.type": "PEM",
        },
    ),
    "a certificate": Mapped(
        settings={
            "security.protocol": "SSL",
            "ssl.certificate.location": "cert.pem",
            "ssl.key.location": "key.pem",
        }
        | {
            "ssl.key.password": "x",
            "ssl.endpoint.identification.algorithm": "none",
            "ssl.ca.location": "probe",
        },
        options={
            "kafka.security.protocol": "SSL",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.ssl.key.password": "x",
            "kafka.ssl.keystore.certificate.chain": "CERTIFICATE",
            "kafka.ssl.keystore.key": "KEY",
            "kafka.ssl.keystore.type": "PEM",
        },
    ),
    "a key store": Mapped(
        settings={"ssl.keystore.location": "/keys.p12", "ssl.keystore.password": "x"},
        options={
            "kafka.ssl.keystore.location": "/keys.p12",
            "kafka.ssl.keystore.password": "x",
            "kafka.ssl.keystore.type": "PKCS12",
        },
    ),
    "Kerberos": Mapped(
        settings={
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.keytab": "/k",
            "sasl.kerberos.principal": "p",
            "sasl.kerberos.service.name": "kafka",
        },
        options={
            "kafka.sasl.jaas.config": (
                "com.sun.security.auth.module.Krb5LoginModule required "
                'useKeyTab="true" storeKey="true" keyTab="/k" principal="p";'
            ),
            "kafka.sasl.kerberos.service.name": "kafka",
            "kafka.sasl.mechanism": "GSSAPI",
        },
    ),
}


@pytest.mark.parametrize("case", MAPPED.values(), ids=MAPPED.keys())
def test_settings_are_translated(case: Mapped) -> None:
    assert case.options == connector_options(case.settings, read=read)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER"),
        ({"ssl.crl.location": "x"}, "ssl.crl.location"),
        ({"ssl.ca.location": "nowhere.pem"}, "cannot be read"),
        ({"ssl.key.location": "key.pem"}, "together"),
    ],
)
def test_settings_without_counterpart_are_refused(settings: Mapping[str, str], named: str) -> None:
    with pytest.raises(CallerError, match=named):
        connector_options(settings, read=read)


def test_the_topics_are_those_that_brokers_write() -> None:
    topics = topics_of(address_of("kafka://h:1/shop"))
    assert {
        "channel": "shop",
        "decisions": "shop-decisions",
        "serving": "shop-serving",
        "loads": "shop-loads",
    } == topics


def test_the_pattern_matches_no_other_topic() -> None:
    found = re.compile(pattern_of(topics_of(address_of("kafka://h:1/s.hop")).values())).search
    assert [True, True, False, False, False] == [
        found(name) is not None
        for name in ("s.hop", "s.hop-loads", "s.hop-findings", "work.s.hop", "sxhop")
    ]


def test_positions_name_every_partition() -> None:
    """The connector refuses a topic with a partition that is not named."""
    topics = topics_of(address_of("kafka://h:1/shop"))
    positions = starting_offsets(
        topics, {"channel": 7, "loads": 5}, {"shop": 1, "shop-loads": 3, "shop-serving": 1}
    )
    assert {
        "shop": {"0": 7},
        "shop-loads": {"0": 5, "1": -2, "2": -2},
        "shop-serving": {"0": -2},
    } == json.loads(positions)
