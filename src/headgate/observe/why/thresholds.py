"""Every threshold of `why`, with its reason. Shares are from 0 to 1."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ALTERNATES",
    "BACK_PRESSURED",
    "BACK_PRESSURED_STEPS",
    "BLOCKED_SOCKET",
    "BUFFER_FACTOR_LIMIT",
    "CONSUMER_WORKS",
    "FULL_PROCESS",
    "HOT_KEY_EXPLAINS",
    "HOT_KEY_SHARE",
    "IDLE_SOURCE",
    "MENTIONED",
    "OTHER_THREADS",
    "RUN_QUEUE",
    "RUN_QUEUE_PER_CPU",
    "SATURATED",
    "SHORT_ROUND_TRIP_MS",
    "SKEWED",
    "UNEVEN",
    "WAITS",
    "WAITS_AT_LEAST",
    "WAITS_WITHOUT_RUN_QUEUE",
    "WINDOW_MS",
    "YOUNG_S",
]

# Time.

WINDOW_MS: Final = 10_000
"""The part of the past that counts: long enough to see operators alternate, short enough to describe the present."""

YOUNG_S: Final = 1.0
"""Workers report every second: before the first report there are no figures."""

# The bottleneck.

BACK_PRESSURED: Final = 0.2
"""A task that is blocked for an output buffer for this share of a step is back-pressured. Less is normal for bounded
buffers: sampling (B1) calls up to 0.1 OK, and a step of 100 ms varies more than a round of sampling."""

CONSUMER_WORKS: Final = 0.5
"""A consumer that is busy for this share of a step has input: its work is the limit, not the exchange. A consumer
behind a slow exchange is idle most of the time."""

BACK_PRESSURED_STEPS: Final = 0.3
"""A job with a back-pressured task in fewer of its steps has no bottleneck: it has just started, or had a burst."""

ALTERNATES: Final = 0.25
"""A second vertex alternates with the bottleneck if it has this share of the votes."""

SATURATED: Final = 0.85
"""A task that is busy for this share of the time cannot do much more."""

IDLE_SOURCE: Final = 0.5
"""A source that is idle for this share of the time limits a job, if no task of the job is busy for more than that."""

# One task of a vertex.

UNEVEN: Final = 0.75
"""If the mean of a vertex's tasks is below this share of its busiest task, the busiest task stands out: with even work
the vertex could be a third faster, which is more than most other changes bring."""

SKEWED: Final = 1.3
"""A task has more than its share of the records if it has this many times the mean. With less, the cost of its records
or its machine makes it busier, and spreading the records would not change that."""

HOT_KEY_SHARE: Final = 0.1
"""A key with a smaller share of all records is not hot: it alone cannot overload one of a few tasks."""

HOT_KEY_EXPLAINS: Final = 0.5
"""A key explains a task's load if it has this share of the records that the task has beyond an even share."""

# Busy time.

WAITS: Final = 0.5
"""A task that runs on no CPU for this share of its busy time, for no other thread's sake, is limited by what it waits
for: it could do twice as much without faster code. Time in the run queue does not count: on a busy machine tasks that
compute have it, and so have tasks that wake often."""

WAITS_AT_LEAST: Final = 0.25
"""With a smaller share of all busy time, a task does not count as waiting: beside a long run queue, the rest is not
measured well."""

WAITS_WITHOUT_RUN_QUEUE: Final = 0.8
"""In place of `WAITS` where the system does not report the run queue. On a machine with too few CPUs, work would
otherwise be taken for waiting."""

FULL_PROCESS: Final = 0.75
"""A process whose threads use, or queue for, this many CPUs has its interpreter in use nearly all of the time, and its
other threads wait. With less, there are gaps in which a runnable thread would run."""

OTHER_THREADS: Final = 0.25
"""If other threads of the process explain this share of a task's busy time, the answer names the interpreter's lock."""

RUN_QUEUE: Final = 0.4
"""A task that is in the run queue for this share of its busy time lacks CPUs before anything else."""

RUN_QUEUE_PER_CPU: Final = 10.0
"""A thread that computes all the time is in the run queue for as many times its CPU time as other threads compete for
its CPU. A thread with more than this many times its CPU time wakes often, and computes little."""

MENTIONED: Final = 0.15
"""Smaller shares of busy time are left out of the evidence."""

# Exchanges.

BLOCKED_SOCKET: Final = 0.3
"""A connection whose socket accepts no bytes for this share of the time is full: a socket that keeps up accepts all
bytes at once, and is blocked for milliseconds only."""

SHORT_ROUND_TRIP_MS: Final = 1.0
"""A shorter round trip is not mentioned: machines side by side have it."""

BUFFER_FACTOR_LIMIT: Final = 16
"""The advice multiplies the number of buffers by no more than this: a producer that is blocked for longer has other
limits, too."""
