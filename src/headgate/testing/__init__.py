"""A deterministic simulator of the exchange: the production parts under seeded time, weather and faults.

`simulate` runs one seed, `simulate_many` a lot of them; `Simulation` takes a plan and faults of your own. Below them,
`Simulator` is virtual time, `SimNet` and `SimTransport` are its network and `SimSync` its locks: enough to test other
code against a headgate that lives in it.
"""

from headgate.testing.faults import KINDS, Fault, draw_faults
from headgate.testing.many import Failure, simulate_many
from headgate.testing.plan import Plan, ProducerPlan, draw_plan
from headgate.testing.simnet import SimListener, SimNet, SimTransport
from headgate.testing.simstream import Cut, SimStream, Tap, Weather
from headgate.testing.simulation import Outcome, Simulation, simulate
from headgate.testing.simulator import Actor, Scheduled, Simulator, fork
from headgate.testing.waiting import SimLock, SimSync, SimWaiter

__all__ = [
    "KINDS",
    "Actor",
    "Cut",
    "Failure",
    "Fault",
    "Outcome",
    "Plan",
    "ProducerPlan",
    "Scheduled",
    "SimListener",
    "SimLock",
    "SimNet",
    "SimStream",
    "SimSync",
    "SimTransport",
    "SimWaiter",
    "Simulation",
    "Simulator",
    "Tap",
    "Weather",
    "draw_faults",
    "draw_plan",
    "fork",
    "simulate",
    "simulate_many",
]
