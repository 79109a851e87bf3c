"""Which file systems are refused, told by mount tables that are written down here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.file_system import file_system_type, refuse_network_file_system

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /srv rw - nfs4 store:/export rw,vers=4.2
24 23 254:1 / /srv/local rw shared:2 master:3 - xfs /dev/vdb rw
25 22 0:40 / /mnt/with\040space rw - cifs //store/share rw
26 22 0:41 / /mnt/twice rw - ext4 /dev/vdc rw
27 26 0:42 / /mnt/twice rw - fuse.sshfs somebody@store: rw
28 22 0:43 / /mnt/layers rw - fuse.fuse-overlayfs fuse-overlayfs rw
29 22 0:44 / /mnt/host rw - virtiofs host rw
30 22 0:45 / /mnt/stick rw - fuseblk /dev/sdb1 rw
a line that says nothing
"""


@dataclass(frozen=True, kw_only=True)
class Lies:
    path: str
    on: str


LIES = (
    Lies(path="/", on="ext4"),
    Lies(path="/var/lib/log.db", on="ext4"),
    Lies(path="/srv", on="nfs4"),
    Lies(path="/srv/log.db", on="nfs4"),
    Lies(path="/srvs/log.db", on="ext4"),
    Lies(path="/srv/local/log.db", on="xfs"),
    Lies(path="/mnt/with space/log.db", on="cifs"),
    Lies(path="/mnt/twice/log.db", on="fuse.sshfs"),
)


@pytest.mark.parametrize("case", LIES, ids=lambda case: case.path)
def test_the_innermost_mount_counts(case: Lies) -> None:
    """A path lies on the file system of the longest mount point above it, of equal ones on the
    last.
    """
    assert case.on == file_system_type(case.path, mounts=MOUNTS)


def test_an_empty_mount_table_tells_nothing() -> None:
    """Where no mount point covers a path, its file system is not known."""
    assert file_system_type("/srv/log.db", mounts="") == ""


def table_of(file_system: str, folder: Path) -> Path:
    """A mount table that says that everything lies on one file system."""
    table = folder / "mountinfo"
    table.write_text(f"22 1 254:0 / / rw,relatime shared:1 - {file_system} source rw\n")
    return table


@pytest.mark.parametrize(
    "file_system", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse", "virtiofs", "ceph"]
)
def test_shared_file_systems_are_refused(file_system: str, tmp_path: Path) -> None:
    """A file that a second kernel may open is refused, and the error names the file and its file
    system.
    """
    with pytest.raises(
        OperatorError,
        match=f"{tmp_path}/log.db lies on {file_system}, where locks cannot be trusted",
    ):
        refuse_network_file_system(tmp_path / "log.db", mount_table=table_of(file_system, tmp_path))


@pytest.mark.parametrize(
    "file_system",
    ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "apfs"],
)
def test_local_file_systems_are_let_pass(file_system: str, tmp_path: Path) -> None:
    """A file on a disk of this machine is used."""
    refuse_network_file_system(tmp_path / "log.db", mount_table=table_of(file_system, tmp_path))


def test_a_system_without_mount_table_refuses_nothing(tmp_path: Path) -> None:
    """Where the system has no such table, the file is used."""
    refuse_network_file_system(tmp_path / "log.db", mount_table=tmp_path / "missing")
