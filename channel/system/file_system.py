"""Find the file system of a path, refuse file systems that two kernels may share, and lock a
folder or a file.

SQLite's WAL and exclusive locks need reliable locks and shared memory. On a shared file system two
machines can both believe that they hold the lock.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal

from equipoise.channel.core.errors import OperatorError, PeerError

MOUNT_TABLE: Final = Path("/proc/self/mountinfo")

# Network file systems, and those that share a host's files with a virtual machine. There, too, a
# second kernel may open the same file.
SHARED_FILE_SYSTEMS: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "prl_fs",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
    }
)
# FUSE is refused, because it is mostly sshfs, s3fs and the like. These are known to lie on this
# machine's disks.
LOCAL_FUSE_FILE_SYSTEMS: Final = frozenset(
    {"fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.lxcfs", "fuse.mergerfs"}
)


def refuse_network_file_system(path: Path, *, mount_table: Path = MOUNT_TABLE) -> None:
    """Raise `OperatorError` if `path` lies on a file system that another machine may share.

    `path` need not exist, but its folder must. Without a mount table (only Linux has one) nothing
    is refused.
    """
    file_system = _file_system_of(path, mount_table)
    family = file_system.partition(".")[0]
    if file_system not in LOCAL_FUSE_FILE_SYSTEMS and family in SHARED_FILE_SYSTEMS:
        raise OperatorError(
            f"{path} lies on {file_system}, where locks cannot be trusted; put it on a disk of this"
            " machine"
        )


def _file_system_of(path: Path, mount_table: Path) -> str:
    try:
        mounts = mount_table.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ""
    return file_system_type(os.path.realpath(path), mounts=mounts)


def file_system_type(path: str, *, mounts: str) -> str:
    """Return the file system type of the real path `path` by the mount table `mounts`; "" if none
    covers it.

    `mounts` is the text of `/proc/self/mountinfo`, see proc_pid_mountinfo(5). The longest mount
    point wins. Among equal ones the last wins, because it hides the others.
    """
    longest = ""
    found = ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) <= _MOUNT_POINT or not after:
            continue
        mount_point = _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT])
        covers = path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
        if covers and len(mount_point) >= len(longest):
            longest = mount_point
            found = after.split(" ")[0]
    return found


_MOUNT_POINT: Final = 4  # The fifth field of a line.
_OCTAL_ESCAPE: Final = re.compile(r"\\([0-7]{3})")  # Encodes space, tab, newline and backslash.


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block. Create the folder if needed. The operating system
    releases the lock of a dead process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def locked_file(path: Path, mode: Literal["ab", "rb", "a+b"], *, what: str, held: str) -> BinaryIO:
    """Open a file that is locked until it is closed, or the process ends. Raises `OperatorError`,
    which names it as `what`, and `PeerError` with the text `held` if another process has the lock.
    """
    try:
        file = path.open(mode)
    except OSError as error:
        raise OperatorError(
            f"{what} {path} cannot be opened: {error.strerror}; name another file"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise PeerError(held) from error
    return file
