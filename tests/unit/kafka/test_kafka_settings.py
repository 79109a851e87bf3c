"""Settings of the Kafka client and addresses of topics, as users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError
from equipoise.channel.kafka.settings import (
    CONFIG_FILE_VARIABLE,
    CONFIG_VARIABLE,
    FIXED,
    MASK,
    KafkaAddress,
    address_of,
    as_text,
    checked,
    masked,
    parsed,
    without_secrets,
)
from equipoise.channel.log.open_log import kafka_settings, open_log

ADDRESSES: Mapping[str, KafkaAddress] = {
    "kafka://localhost:9092/channel": KafkaAddress(
        servers="localhost:9092", topic="channel", replication=None
    ),
    "kafka://a:1,b.c-d:65535,[::1]:9092/T_o.p-1": KafkaAddress(
        servers="a:1,b.c-d:65535,[::1]:9092", topic="T_o.p-1", replication=None
    ),
    "kafka://a:1/t?replication=3": KafkaAddress(servers="a:1", topic="t", replication=3),
}

REFUSED: Mapping[str, str] = {
    "kafka:localhost:9092/channel": "it needs two slashes before the host",
    "kafka://localhost/channel": "'localhost' is not HOST:PORT",
    "kafka://localhost:0/channel": "'localhost:0' is not HOST:PORT",
    "kafka://localhost:65536/channel": "'localhost:65536' is not HOST:PORT",
    "kafka://localhost:9092": "it names no topic",
    "kafka://localhost:9092/": "it names no topic",
    "kafka:///channel": "'' is not HOST:PORT",
    "kafka://a:1,/channel": "'' is not HOST:PORT",
    "kafka://a:1/..": "is not a topic name",
    "kafka://a:1/a b": "is not a topic name",
    "kafka://a:1/" + "t" * 221: "is not a topic name: 1 to 220",
    "kafka://a:1/t?acks=1": "unknown option 'acks=1'; use replication=COPIES",
    "kafka://a:1/t?replication=0": "'0' is not a number of copies",
    "kafka://a:1/t?replication=³": "'³' is not a number of copies",
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_urls_name_topics(url: str) -> None:
    """A URL names the servers to ask first, a topic, and how many copies it is to have."""
    assert ADDRESSES[url] == address_of(url)


@pytest.mark.parametrize("url", REFUSED)
def test_urls_that_name_no_topic_are_refused(url: str) -> None:
    """A URL that names no topic is the caller's error, which says what is wrong with it."""
    with pytest.raises(CallerError, match=REFUSED[url].replace("(", r"\(")) as caught:
        open_log(url)
    assert repr(url) in str(caught.value)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    """Credentials go into settings, and whoever wrote them into the URL does not find them in the
    message.
    """
    with pytest.raises(
        CallerError, match=r"kafka://\*\*\*@host:9092/topic.*sasl\.username and sasl\.password"
    ) as caught:
        open_log("kafka://user:p@ss@host:9092/topic")
    assert "p@ss" not in str(caught.value)


TEXTS: Mapping[str, Mapping[str, str]] = {
    "": {},
    "a.b=c": {"a.b": "c"},
    " a = b ; c=d=e;": {"a": "b", "c": "d=e"},
    "# a remark\n\na=b;c\nd=\n": {"a": "b;c", "d": ""},
    "a=1\na=2\n": {"a": "2"},
}


@pytest.mark.parametrize("text", TEXTS)
def test_settings_are_lines_or_parts_of_one_line(text: str) -> None:
    """Settings stand one a line, where a value may hold semicolons, or with semicolons between them
    on one line.
    """
    assert TEXTS[text] == parsed(text)


@pytest.mark.parametrize("text", ["secret", "=secret", "Secret Name=x", "a=b\nsecret\n"])
def test_a_text_that_is_no_setting_is_refused_and_not_repeated(text: str) -> None:
    """What is no `key=value` is told by its number, for it may be a password."""
    with pytest.raises(CallerError, match=r"number [12].*it is not key=value") as caught:
        parsed(text)
    assert "ecret" not in str(caught.value)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9._]{0,9}", fullmatch=True),
        st.text(st.characters(min_codepoint=33, max_codepoint=0x2000)),
        min_size=1,
    )
)
def test_settings_survive_the_way_to_a_child(settings: dict[str, str]) -> None:
    """What is written for a child's environment is read back there as it was, whatever the values
    hold, but for a line's end.
    """
    try:
        text = as_text(settings)
    except CallerError:
        assert any(len(value.splitlines()) > 1 for value in settings.values())
        return
    assert {setting: value.strip() for setting, value in settings.items()} == parsed(text)


@pytest.mark.parametrize("setting", sorted(FIXED))
def test_what_the_log_rests_on_is_not_the_users_to_set(setting: str) -> None:
    """A setting that Equipoise itself must choose is refused by its name, with the reason."""
    with pytest.raises(CallerError, match=f"'{setting}' .*leave it out"):
        checked({"client.id": "c", setting: "x"})


def test_an_append_must_hear_that_it_succeeded() -> None:
    """A client that reports failures alone would leave every append in doubt."""
    with pytest.raises(CallerError, match="the order and the durability of the log depend on it"):
        checked({"delivery.report.only.error": "true"})


def test_security_settings_go_through() -> None:
    """All that TLS, SASL and tuning need is the user's to set."""
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "ca.pem",
        "ssl.key.password": "k",
        "sasl.oauthbearer.client.secret": "s",
        "client.id": "me",
        "debug": "security",
    }
    assert settings == checked(settings)


BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_tokens_must_come_from_somewhere(name: str) -> None:
    """Without a method the library waits for a token forever. The error names what is missing, not
    the address.
    """
    problem = r"set it to oidc, and set sasl\.oauthbearer\.token\.endpoint\.url"
    with pytest.raises(CallerError, match=rf"'sasl\.oauthbearer\.method' .*{problem}"):
        checked({"security.protocol": "sasl_plaintext", name: "OAUTHBEARER"})


@pytest.mark.parametrize(
    "settings",
    [
        {**BEARER, "sasl.oauthbearer.method": "oidc"},
        {**BEARER, "enable.sasl.oauthbearer.unsecure.jwt": "true"},
        {"sasl.mechanism": "OAUTHBEARER"},  # It has no effect without SASL.
    ],
)
def test_tokens_that_come_from_somewhere_go_through(settings: Mapping[str, str]) -> None:
    assert settings == checked(settings)


SECRETS: Sequence[str] = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.assertion.private.key.passphrase",
)


@pytest.mark.parametrize("setting", SECRETS)
def test_secrets_are_masked(setting: str) -> None:
    """A setting that holds a secret is shown without it, and so is an error in which the library
    repeats it.
    """
    settings = {setting: "hidden", "sasl.username": "me"}
    assert {setting: MASK, "sasl.username": "me"} == masked(settings)
    assert f"wrong value {MASK} of me" == without_secrets("wrong value hidden of me", settings)


def test_the_environment_goes_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings come from a file and from the environment, and what both say is as the environment
    says.
    """
    file = tmp_path / "client.properties"
    file.write_text("# of the file\nsasl.username=file\nsasl.password=a;b\n")
    monkeypatch.setenv(CONFIG_FILE_VARIABLE, str(file))
    monkeypatch.setenv(CONFIG_VARIABLE, "sasl.username=environment;client.id=c")
    assert {
        "sasl.username": "environment",
        "sasl.password": "a;b",
        "client.id": "c",
    } == kafka_settings()
    file.unlink()
    with pytest.raises(CallerError, match="the file cannot be read"):
        kafka_settings()
    monkeypatch.delenv(CONFIG_FILE_VARIABLE)
    monkeypatch.setenv(CONFIG_VARIABLE, "acks=1")
    with pytest.raises(CallerError, match="'acks' cannot be used"):
        kafka_settings()
