"""How another process of the same user finds a running job and looks at it, and what is kept of finished ones.

A driver offers its jobs at a socket (`offers`, `server`), commands find them there (`client`) or in files (`kept`); all
of it lives in the state directory (`places`).
"""

from headgate.attach.client import AttachedJob, find, running
from headgate.attach.kept import KeptJob, KeptLine, kept
from headgate.attach.offers import offer
from headgate.attach.places import state_directory

__all__ = ["AttachedJob", "KeptJob", "KeptLine", "find", "kept", "offer", "running", "state_directory"]
