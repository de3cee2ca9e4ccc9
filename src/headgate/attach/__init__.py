"""Jobs of other processes of the same user: access to running ones over a Unix socket, and files of finished ones.

A driver publishes its jobs at a socket (`publishing`, `server`); commands find them there (`client`) or in files
(`kept_jobs`). Sockets and files are in the state directory (`directories`).
"""

from headgate.attach.client import AttachedJob, find, running
from headgate.attach.directories import state_directory
from headgate.attach.kept_jobs import KeptJob, KeptLine, kept
from headgate.attach.publishing import publish

__all__ = ["AttachedJob", "KeptJob", "KeptLine", "find", "kept", "publish", "running", "state_directory"]
