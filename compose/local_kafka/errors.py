"""Define the errors of the local Kafka, all under `LocalKafkaError`."""

from __future__ import annotations


class LocalKafkaError(Exception):
    """The root of all errors that the local Kafka raises on purpose."""


class ToolMissing(LocalKafkaError):
    """A required program is not on the path."""

    def __init__(self, *, tool: str, package: str) -> None:
        """`tool` is the program, `package` its Debian package."""
        self.tool = tool
        self.package = package
        super().__init__(f"a local Kafka needs {tool}, which is not on the path; on Debian: apt-get install {package}")


class JarsNotFetched(LocalKafkaError):
    """Maven could not fetch Kafka's jars."""

    def __init__(self, *, problem: str) -> None:
        """`problem` is Maven's output."""
        self.problem = problem
        super().__init__(f"Maven could not fetch the jars of Kafka; see that it reaches its repository, and try again. It said:\n{problem}")


class OtherLayout(LocalKafkaError):
    """A folder holds a Kafka that cannot become the requested one."""

    def __init__(self, *, folder: str, problem: str) -> None:
        """`folder` is that of the cluster, `problem` what differs."""
        self.folder = folder
        self.problem = problem
        super().__init__(f"{folder} holds another Kafka: {problem}; stop that one, and remove its folder if its topics may go")


class NoCluster(LocalKafkaError):
    """A folder holds no Kafka, or no such node."""

    def __init__(self, *, folder: str, problem: str) -> None:
        """`folder` was searched, `problem` is what is missing."""
        self.folder = folder
        self.problem = problem
        super().__init__(f"{folder}: {problem}; start a Kafka there first")


class PortTaken(LocalKafkaError):
    """Another program listens on a node's port."""

    def __init__(self, *, port: int) -> None:
        """`port` is the taken port."""
        self.port = port
        super().__init__(f"port {port} is taken by another program; name another port, or 0 for any that are free")


class NodeFailed(LocalKafkaError):
    """A node did not start, or not in time."""

    def __init__(self, *, node: str, problem: str, last_words: str) -> None:
        """`problem` is what the node did, `last_words` the end of its output."""
        self.node = node
        self.problem = problem
        self.last_words = last_words
        too_old = "; Kafka 4 needs Java 17 or newer" if "UnsupportedClassVersionError" in last_words else ""
        super().__init__(f"{node} of the local Kafka {problem}{too_old}; its last words:\n{last_words or 'none'}")


class NotSuspended(LocalKafkaError):
    """A suspended node still runs: the kernel holds it in a call that does not end, such as to a hung disk."""

    def __init__(self, *, node: str, pid: int) -> None:
        """`pid` is the process that does not stop."""
        self.node = node
        self.pid = pid
        super().__init__(
            f"{node} of the local Kafka, process {pid}, was told to stand still and does not; look at the disk that it writes to"
        )


class NotStopped(LocalKafkaError):
    """A killed node still exists: the kernel holds it in a call that does not end, such as to a hung disk."""

    def __init__(self, *, node: str, pid: int) -> None:
        """`pid` is the process that does not end."""
        self.node = node
        self.pid = pid
        super().__init__(f"{node} of the local Kafka, process {pid}, was killed and does not end; look at the disk that it writes to")
