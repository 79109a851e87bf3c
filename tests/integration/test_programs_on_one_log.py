"""Two programs with different namespaces on one log."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.load.fastapi_programs import UVICORN, Program

pytestmark = pytest.mark.integration

SERVER = tuple("tests.integration.named_visits:app" if ":" in word else word for word in UVICORN)
SHOP, BLOG = "shop/carts", "blog/posts"


async def equipoise(*words: str) -> tuple[int | None, str]:
    """Run a command. Return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "equipoise.brokers.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def visit(session: aiohttp.ClientSession, program: Program) -> None:
    """Visit pages of a program. It serves them itself."""
    for name in "abcdefgh":
        url = f"{program.address}/visits/{name}"
        async with session.post(url, allow_redirects=False) as answer:
            assert 200 == answer.status, await answer.text()


async def test_each_program_is_given_only_what_it_serves(
    tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no program serves waits, is shown, and goes to the first that joins."""
    programs = []
    for namespace in (SHOP, BLOG):
        monkeypatch.setenv("EQUIPOISE_NAMESPACE", namespace)
        programs.append(Program(log_url, tmp_path, server=SERVER))
    shop, blog = programs
    log = ("--log", log_url)
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(120):
            for each in programs:
                await each.start(session)
            for each in programs:
                await visit(session, each)
            code, text = await equipoise("brokers", "list", *log, "--json")
            brokers = {each["namespaces"][0]: each for each in json.loads(text)}
            assert (0, {SHOP, BLOG}) == (code, set(brokers))
            assert [4, 4] == [each["bundles"] for each in brokers.values()]

            there = brokers[BLOG]["broker"]
            words = ("namespaces", "unload", SHOP, "--bundle", "0x00000000_0x40000000")
            for more in ((), ("--force",)):
                code, text = await equipoise(*words, "--destination-broker", there, *more, *log)
                assert (True, True) == (
                    code != 0,
                    f"the program of {there} does not serve {SHOP}; name one that does: "
                    f"{brokers[SHOP]['broker']}" in text.replace("\n", " "),
                ), text

            await blog.terminate()
            code, text = await equipoise("namespaces", "list", *log)
            assert (0, True) == (code, f"no broker that is up serves {BLOG}" in text), text
            _, text = await equipoise("channel", "why", f"{BLOG}/0x00000000_0x40000000", *log)
            assert f"no broker that is up serves {BLOG}" in text
            await visit(session, shop)

            await blog.start(session)
            await visit(session, blog)
            _, text = await equipoise("namespaces", "list", *log)
            assert "no broker" not in text
    finally:
        for each in programs:
            await each.kill()
