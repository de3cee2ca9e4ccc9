"""A job on a cluster of this machine that loses an executor on its way: says who its ports are, and how it ends."""

import os
import signal
import ssl
import sys
import tempfile
from pathlib import Path

from cryptography import x509
from tests.spark import pipelines

from headgate.errors import HeadgateError
from headgate.spark import SparkHost


def listening_ports(process: int) -> list[int]:
    """The TCP ports on which a process waits for others."""
    inodes = set()
    for one in Path(f"/proc/{process}/fd").iterdir():
        target = os.readlink(one) if one.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def executor_of(process: int) -> int:
    """The JVM that a Python worker works for: the daemon's parent."""
    while "java" not in Path(f"/proc/{process}/cmdline").read_text().partition("\0")[0]:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


def issuer_at(port: int) -> str:
    certificate = ssl.get_server_certificate(("127.0.0.1", port), timeout=20)
    return x509.load_pem_x509_certificate(certificate.encode()).issuer.rfc4514_string()


def main() -> None:
    host = SparkHost(master=sys.argv[1])
    with tempfile.TemporaryDirectory() as begun:
        job = pipelines.endless(host, Path(begun))
        processes = pipelines.pids(Path(begun), 2)
        issuers = {issuer_at(port) for process in processes for port in listening_ports(process)}
        sys.stdout.write(f"issuers {sorted(issuers)}\n")
        os.kill(executor_of(processes[0]), signal.SIGKILL)
        try:
            job.await_termination(120)
        except HeadgateError as error:
            sys.stdout.write(f"ended with {type(error).__name__}: {error}\n")
        pipelines.wait_until_gone(processes[:1])
    sys.stdout.write(f"status {job.status}\n")
    host.session().stop()


if __name__ == "__main__":
    main()
