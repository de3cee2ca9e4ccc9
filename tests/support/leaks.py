"""Which files and sockets this process has open, and where each socket comes from.

PySpark's connections to its JVM do not count. PySpark opens them when it has to, in any test of a process in which a
Spark session is alive: its finalizer thread sends the release of every collected Java object, and the JVM connects to
the server of the accumulators. They are told apart by their ports, as the kernel lists them, and by the module that
created them: the kernel no longer lists the ends of a connection whose JVM has ended.
"""

import os
import socket
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

_STACK_FRAMES = 12

_origins: weakref.WeakKeyDictionary[socket.socket, str] = weakref.WeakKeyDictionary()
_of_pyspark: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_pyspark_ports_seen: set[int] = set()  # a session may have ended, and its connections be left


def open_files() -> set[str]:
    """Return the numbers of all open files of this process."""
    return set(os.listdir("/proc/self/fd"))


def unnamed_files() -> set[str]:
    """Return the sockets of this process, PySpark's apart, and its open files that have no name in a directory."""
    found, sockets, of_pyspark = set(), {}, {str(one.fileno()) for one in list(_of_pyspark)}
    for fd, target in _open_targets():
        if fd in of_pyspark:
            continue
        if target.endswith("(deleted)"):
            found.add(f"{fd} -> {target}")
        elif target.startswith("socket:["):
            sockets[target[8:-1]] = f"{fd} -> {target}"
    if ports := _pyspark_ports():  # the kernel's tables are read only then: they take longer than all the rest
        for inode, local, remote in _tcp_ends():
            if {_port(local), _port(remote)} & ports:
                sockets.pop(inode, None)
    return found | set(sockets.values())


def own_tcp_sockets() -> set[str]:
    """Return the TCP sockets of this process, PySpark's apart: `local -> remote`, as the kernel writes them.

    A socket keeps its ends while a library duplicates its file descriptor, so this suits a test on Spark, during which
    PySpark opens and closes files.
    """
    inodes = {target[8:-1] for _, target in _open_targets() if target.startswith("socket:[")}
    ports = _pyspark_ports()
    return {
        f"{local} -> {remote}"
        for inode, local, remote in _tcp_ends()
        if inode in inodes and not {_port(local), _port(remote)} & ports
    }


def record_socket_origins() -> None:
    """From now on, keep the test and the stack that create each Python socket, for `describe`."""
    create = socket.socket.__init__

    def create_and_record(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        stack = traceback.StackSummary.extract(
            traceback.walk_stack(sys._getframe(1)), limit=_STACK_FRAMES, lookup_lines=False
        )
        stack.reverse()
        test = os.environ.get("PYTEST_CURRENT_TEST", "outside of all tests")
        _origins[self] = f"{test}\n{''.join(stack.format())}"
        paths = [Path(frame.filename) for frame in stack]
        makers = [path for path in paths if path.name not in ("socket.py", "socketserver.py")]
        if makers and {"py4j", "pyspark"} & set(makers[-1].parts):
            _of_pyspark.add(self)

    socket.socket.__init__ = create_and_record  # type: ignore[method-assign]


def describe(files: set[str]) -> str:
    """Return one paragraph per entry of `unnamed_files`: for a socket also its kind, its ends, and what created it."""
    return "\n".join(_describe(one) for one in sorted(files))


def _describe(entry: str) -> str:
    fd = int(entry.partition(" ")[0])
    try:
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            kind = f"{duplicate.family.name} {duplicate.type.name}"
            ends = f"{_end(duplicate.getsockname)} -> {_end(duplicate.getpeername)}"
    except OSError:  # a file, or closed meanwhile
        return entry
    origin = next((text for made, text in list(_origins.items()) if made.fileno() == fd), None)
    return f"{entry}: {kind}, {ends}, created by {origin or 'no Python code: a library in C, or detached from it'}"


def _end(name: Any) -> object:
    try:
        return name() or "unnamed"
    except OSError:
        return "not connected"


def _open_targets() -> list[tuple[str, str]]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:  # closed meanwhile, like the one that lists them
            continue
    return found


def _pyspark_ports() -> set[int]:
    """Return the ports of PySpark's JVM and of its accumulators, also of sessions that have ended."""
    module = sys.modules.get("pyspark")
    if module is None:
        return _pyspark_ports_seen
    gateway, context = module.SparkContext._gateway, module.SparkContext._active_spark_context
    if gateway is not None:
        _pyspark_ports_seen.add(gateway.java_parameters.port)
    if context is not None:
        _pyspark_ports_seen.add(context._accumulatorServer.server_address[1])
    return _pyspark_ports_seen


def _tcp_ends() -> list[tuple[str, str, str]]:
    """Return inode, local and remote end of all TCP sockets of this machine, as the kernel writes them."""
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            columns = line.split()
            found.append((columns[9], columns[1], columns[2]))
    return found


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)
