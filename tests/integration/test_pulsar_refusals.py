"""Test what real Pulsar clients show a person whose client cannot be served: one reason, and no
retries for ever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.pulsar.programs import EVERYDAY, Language, command, require
from tests.unit.pulsar.wire_client import NAMESPACE, brokers

# Building a program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

VERBS = {"produce": ("--rate", "1"), "consume": ("--subscription", "s", "--type", "Shared")}


async def ended(*program: str) -> tuple[int | None, str]:
    """Run a program that ends by itself. Return its exit code, and all that it printed."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *program, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    printed = await process.stdout.read()  # Its input stays open: the programs run until that ends.
    return await process.wait(), printed.decode()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("language", EVERYDAY)
async def test_a_client_of_a_persistent_topic_shows_the_topic_to_use(
    language: Language, verb: str, tmp_path: Path
) -> None:
    require(language)
    program = await asyncio.to_thread(command, language)
    async with brokers(tmp_path) as running:
        (member,) = running.members
        arguments = (
            verb,
            *VERBS[verb],
            "--name",
            "n",
            "--url",
            member.url,
            "--topics",
            f"persistent://{NAMESPACE}/t",
        )
        code, printed = await ended(*program, *arguments)
        assert (1, True) == (code, f"use non-persistent://{NAMESPACE}/t" in printed), printed
        assert "NotAllowed" in printed
        # Each request is refused once: the metadata, or for Go the lookup behind it.
        assert 1 == await member.metric("connections_accepted_total")
        assert 0 == await member.metric("topics")
