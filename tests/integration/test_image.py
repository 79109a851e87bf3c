"""The container image, built here: three brokers of it on Kafka serve Pulsar clients while each is
restarted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pulsar
import pytest

from equipoise.channel.system.free_ports import free_row
from tests.house.house_rules import ROOT
from tests.kafka.fixtures import Kafka
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("buildah") and shutil.which("debootstrap")),
        reason="needs root: apt-get install buildah debootstrap",
    ),
]

BYTES_MAX = 200e6
PAUSE_S = 0.05
MAY_CHANGE = ("dev", "etc", "proc", "run", "sys", "tmp", "var/lib/equipoise")
JSON = {"Content-Type": "application/json"}
TOPIC = "non-persistent://public/default/orders"


def said(*command: str | Path) -> str:
    """Run a command, and return what it prints last."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the image, on Debian as debootstrap makes it: no registry may be in reach."""
    root, base = tmp_path_factory.mktemp("debian"), "localhost/debian:of-debootstrap"
    said("debootstrap", "--variant=minbase", "--exclude=e2fsprogs", "trixie", root)
    for folder in ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/lib/apt/lists"):
        shutil.rmtree(root / folder)
        (root / folder).mkdir()  # The image of Debian lacks their files, too.
    said("chroot", root, "apt-get", "clean")
    container = said("buildah", "from", "scratch")
    said("buildah", "add", "--quiet", container, root, "/")
    if authorities := os.environ.get("SSL_CERT_FILE"):  # Of a proxy before the package indexes.
        said("buildah", "add", "--quiet", container, authorities, "/etc/authorities.crt")
        for name in ("SSL_CERT_FILE", "PIP_CERT"):
            said("buildah", "config", "--env", f"{name}=/etc/authorities.crt", container)
    said("buildah", "commit", "--quiet", container, base)
    said("buildah", "rm", container)
    name = said("make", "--silent", "image", f"BASE={base}")
    yield f"localhost/{name}"
    said("buildah", "rmi", f"localhost/{name}", base)


class Broker:
    """A broker in a container, which keeps its data directory over restarts."""

    def __init__(self, image: str, log_url: str, port: int) -> None:
        self.port = port
        self._container = said("buildah", "from", "--pull-never", image)
        self._log_url = log_url
        self.start()

    def start(self) -> None:
        variables = {
            "ADVERTISED_HOST": "127.0.0.1",
            "HTTP_PORT": self.port,
            "PULSAR_PORT": self.port + 1,
        }
        of_broker = [f"--env={name}={value}" for name, value in variables.items()]
        self._process = subprocess.Popen(
            [
                *("buildah", "run", "--isolation", "chroot", "--user", "equipoise", *of_broker),
                *(self._container, "--", "broker", "--log", self._log_url),
            ],
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: self.is_ready, f"the broker at port {self.port} is ready")

    @property
    def is_ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5):
                return True
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        """End it as an engine does."""
        *_, broker = psutil.Process(self._process.pid).children(recursive=True)
        broker.terminate()
        assert self._process.wait(120) == 0

    def changed(self, since_s: float) -> list[str]:
        """The files that have changed and are neither data nor those of the engine."""
        root = Path(said("buildah", "mount", self._container))
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        assert sum(path.stat().st_size for path in files) < BYTES_MAX
        return [
            name
            for path in files
            if path.stat().st_mtime > since_s
            and not (name := str(path.relative_to(root))).startswith(MAY_CHANGE)
        ]

    def remove(self) -> None:
        if self._process.poll() is None:
            self.stop()
        said("buildah", "rm", self._container)


def test_a_cluster_of_the_image_is_restarted_under_pulsar_clients(
    image: str, kafka: Kafka, request: pytest.FixtureRequest
) -> None:
    """Each message with a receipt arrives, and nothing but data is written."""
    began_s, ports = time.time(), free_row(6)
    log_url = f"kafka://{kafka.address}/{kafka.topic('image')}"
    brokers = [Broker(image, log_url, ports + 2 * number) for number in range(3)]
    for broker in brokers:
        request.addfinalizer(broker.remove)
    url = f"http://127.0.0.1:{brokers[0].port}/admin/v2/namespaces/public/default"
    with urlopen(Request(url, data=b"{}", method="PUT", headers=JSON)) as answer:
        assert answer.status == 204
    client = pulsar.Client(
        "pulsar://" + ",".join(f"127.0.0.1:{broker.port + 1}" for broker in brokers),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    received, sent, is_over = set[int](), set[int](), threading.Event()
    consumer = client.subscribe(
        TOPIC, "all", message_listener=lambda _, message: received.add(int(message.data()))
    )
    producer = client.create_producer(TOPIC)

    def send() -> None:
        number = 0
        while not is_over.wait(PAUSE_S):
            producer.send(str(number).encode())
            sent.add(number)
            number += 1

    def sends_on(before: int) -> bool:
        return len(sent) > before

    sender = threading.Thread(target=send)
    sender.start()
    for broker in brokers:
        broker.stop()
        broker.start()
        wait_until(partial(sends_on, len(sent)), "a message is sent after a restart")
    is_over.set()
    sender.join()
    wait_until(lambda: sent <= received, "every message with a receipt arrives")
    consumer.close()
    client.close()
    assert all(broker.changed(began_s) == [] for broker in brokers)
