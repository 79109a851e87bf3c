"""What becomes of the entries of a `broker.conf` about security."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.cli.broker_conf import read_broker_conf, read_security_entries, settings_over
from equipoise.brokers.errors import InvalidConfig
from tests.unit.cli.fabricated import run

# As Pulsar 4.0 ships them.
SHIPPED = """\
brokerServicePortTls=
webServicePortTls=
tlsCertRefreshCheckDurationSec=300
tlsCertificateFilePath=
tlsKeyFilePath=
tlsTrustCertsFilePath=
tlsAllowInsecureConnection=false
tlsHostnameVerificationEnabled=false
tlsProtocols=
tlsCiphers=
tlsRequireTrustedClientCertOnConnect=false
tlsProvider=
webServiceTlsProvider=Conscrypt
tlsEnabledWithKeyStore=false
tlsKeyStoreType=JKS
tlsKeyStore=
tlsKeyStorePassword=
tlsTrustStoreType=JKS
brokerClientTlsEnabledWithKeyStore=false
brokerClientSslProvider=
brokerClientTlsTrustStoreType=JKS
sslFactoryPlugin=org.apache.pulsar.common.util.DefaultPulsarSslFactory
sslFactoryPluginParams=
authenticationEnabled=false
authenticationProviders=
authenticationRefreshCheckSeconds=60
authorizationEnabled=false
authorizationProvider=org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider
authorizationAllowWildcardsMatching=false
superUserRoles=
brokerClientTlsEnabled=false
brokerClientAuthenticationPlugin=
brokerClientAuthenticationParameters=
brokerClientTrustCertsFilePath=
athenzDomainNames=
anonymousUserRole=
proxyRoles=
authenticateOriginalAuthData=false
authenticateMetricsEndpoint=false
tokenSettingPrefix=
tokenSecretKey=
tokenPublicKey=
tokenPublicAlg=
tokenAuthClaim=
tokenAudienceClaim=
tokenAudience=
saslJaasClientAllowedIds=.*pulsar.*
saslJaasServerSectionName=PulsarBroker
kinitCommand=/usr/bin/kinit
bookkeeperTLSClientAuthentication=false
bookkeeperClientAuthenticationPlugin=org.example.Plugin
replicationTlsEnabled=false
tlsEnabled=false
"""
TLS = {
    "tlsCertificateFilePath": "/b.pem",
    "tlsKeyFilePath": "/b.key",
    "tlsTrustCertsFilePath": "/ca.pem",
}
ON = {"authenticationEnabled": "true"}
PACKAGE = "org.apache.pulsar.broker.authentication."
CLIENT = "org.apache.pulsar.client.impl.auth."


def providers(*names: str) -> dict[str, str]:
    return ON | {
        "authenticationProviders": ", ".join(
            f"{PACKAGE}AuthenticationProvider{name}" for name in names
        )
    }


def plugin(name: str, parameters: str) -> dict[str, str]:
    return ON | {
        "brokerClientAuthenticationPlugin": f"{CLIENT}{name}",
        "brokerClientAuthenticationParameters": parameters,
    }


def test_what_pulsar_ships_sets_nothing_and_is_no_problem() -> None:
    read = read_security_entries(dict(line.split("=", 1) for line in SHIPPED.splitlines()))
    assert ({}, {"tls_require_client_certificate": "false", "authorization": "false"}) == (
        read.problems,
        read.settings,
    )


IS_ON = {"authentication": "true"}
TLS_SETTINGS = {"tls_certificate": "/b.pem", "tls_key": "/b.key", "tls_ca": "/ca.pem"}


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        (TLS, TLS_SETTINGS),
        ({"tokenSecretKey": "hush"}, {}),
        (ON | {"tokenSecretKey": "hush"}, IS_ON | {"token_secret_key": "hush"}),
        (
            ON | {"tokenSecretKey": "hush", "tokenPublicKey": "/p"},
            IS_ON | {"token_secret_key": "hush"},
        ),
        (
            providers("Token") | {"tokenPublicKey": "/p", "basicAuthConf": "/u"},
            IS_ON | {"token_public_key": "/p"},
        ),
        (
            providers("Basic") | {"tokenPublicKey": "/p", "basicAuthConf": "/u"},
            IS_ON | {"basic_passwords": "/u"},
        ),
        (providers("Tls"), IS_ON | {"certificate_roles": "true"}),
        (
            providers("Basic", "Tls", "Token") | {"tokenSecretKey": "/s", "basicAuthConf": "/u"},
            IS_ON
            | {"certificate_roles": "true", "basic_passwords": "/u", "token_secret_key": "/s"},
        ),
        (plugin("AuthenticationToken", "token:x"), IS_ON | {"broker_token": "token:x"}),
        (
            plugin("AuthenticationBasic", '{"userId":"broker","password":"a:b"}'),
            IS_ON | {"broker_token": "basic:broker:a:b"},
        ),
        (plugin("AuthenticationDisabled", "x"), IS_ON),
        ({"proxyRoles": "proxy"}, {}),
        (
            {"authorizationEnabled": "true", "superUserRoles": "admin, root ,"},
            {"authorization": "true", "super_roles": "admin,root"},
        ),
        (
            {"authorizationEnabled": "false", "superUserRoles": "admin"},
            {"authorization": "false"},
        ),
        (ON | {"proxyRoles": "proxy, gateway ,"}, IS_ON | {"proxy_roles": "proxy,gateway"}),
        (
            TLS
            | plugin("AuthenticationTls", "tlsCertFile:/b.pem,tlsKeyFile:/b.key")
            | {"brokerClientTrustCertsFilePath": "/ca.pem", "brokerServicePortTls": "6651"},
            IS_ON | TLS_SETTINGS,
        ),
    ],
)
def test_entries_become_settings(values: dict[str, str], settings: dict[str, str]) -> None:
    read = read_security_entries(values)
    assert ({}, settings) == (read.problems, read.settings)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"authorizationEnabled": "yes"}, "must be true or false"),
        ({"authorizationProvider": "hush"}, "brokers have nothing like it"),
        ({"authorizationAllowWildcardsMatching": "true"}, "rights name roles and topics in full"),
        ({"anonymousUserRole": "hush"}, "brokers have nothing like it"),
        ({"authenticateOriginalAuthData": "true"}, "brokers have nothing like it"),
        ({"tlsAllowInsecureConnection": "true"}, "brokers have nothing like it"),
        ({"tlsEnabledWithKeyStore": "true"}, "brokers have nothing like it"),
        ({"tlsCiphers": "hush"}, "brokers have nothing like it"),
        ({"tlsProtocols": "TLSv1.3"}, "brokers accept TLS 1.2 and 1.3"),
        ({"tokenAudienceClaim": "hush"}, "always in the claim aud"),
        ({"tokenPublicAlg": "PS256"}, "follow from the key"),
        ({"someNewAuthSetting": "hush"}, "brokers have nothing like it"),
        ({"brokerServicePortTls": "6651"}, "would not encrypt"),
        ({"brokerClientTrustCertsFilePath": "/hush"} | TLS, "differs from tlsTrustCertsFilePath"),
        ({"authenticationEnabled": "yes"}, "must be true or false"),
        ({"authenticationProviders": "x.AuthenticationProviderSasl"} | ON, "brokers know only"),
        ({"authenticationProviders": "x.AuthenticationProviderBasic"} | ON, "needs basicAuthConf"),
        (
            {"authenticationProviders": "x.AuthenticationProviderToken"} | ON,
            "needs tokenSecretKey or tokenPublicKey",
        ),
        ({"brokerClientAuthenticationPlugin": "x.Hush"} | ON, "brokers know only"),
        (
            {
                "brokerClientAuthenticationParameters": "hush",
                "brokerClientAuthenticationPlugin": "AuthenticationBasic",
            }
            | ON,
            "Basic takes",
        ),
        (
            {
                "brokerClientAuthenticationParameters": "hush:x",
                "brokerClientAuthenticationPlugin": "AuthenticationTls",
            }
            | ON,
            "other files",
        ),
    ],
)
def test_what_cannot_be_taken_is_a_problem_that_does_not_show_its_value(
    values: dict[str, str], problem: str
) -> None:
    read = read_security_entries(values)
    key = next(iter(values))
    assert [key] == list(read.problems)
    assert problem in read.problems[key]
    assert "hush" not in read.problems[key] + repr(read)


@given(
    st.dictionaries(
        st.sampled_from(
            [line.partition("=")[0] for line in SHIPPED.splitlines()]
            + ["basicAuthConf", "fooTlsBar", "unrelated"]
        ),
        st.sampled_from(
            ["", "true", "false", "x", f"{PACKAGE}AuthenticationProviderTls", "/b.pem"]
        ),
    )
)
def test_nothing_about_security_is_dropped_silently(values: dict[str, str]) -> None:
    """Each entry is in exactly one of the lists, and each setting comes from one that is taken."""
    read = read_security_entries(values)
    lists = (set(read.taken), set(read.ignored), set(read.problems))
    about = set(values) - {
        "unrelated",
        "bookkeeperTLSClientAuthentication",
        "bookkeeperClientAuthenticationPlugin",
    }
    assert about == set[str]().union(*lists)
    assert len(about) == sum(map(len, lists))
    assert set(read.settings) == set(read.taken.values())


def test_no_broker_starts_with_an_entry_that_cannot_be_taken(tmp_path: Path) -> None:
    """A command that only shows the file lists it."""
    conf = tmp_path / "broker.conf"
    conf.write_text("tlsCiphers=x\nanonymousUserRole=guest\nclusterName=\n", encoding="iso-8859-1")
    with pytest.raises(
        InvalidConfig, match=r"--broker-conf: tlsCiphers: .*--broker-conf: anonymousUserRole: "
    ):
        settings_over(read_broker_conf(conf), {})
    shown = run("balancing", "read", str(conf))
    assert (1, True) == (
        shown.exit_code,
        "0 taken, 1 without meaning here, 2 not understood" in shown.stdout,
    )
    started = run(
        "broker",
        "--data",
        str(tmp_path / "b"),
        "--broker-conf",
        str(conf),
        "--print-config",
        log="sqlite:x.db",
    )
    assert (2, True) == (started.exit_code, "anonymousUserRole" in started.stderr)
