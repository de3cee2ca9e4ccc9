"""A deterministic simulator of the exchange: the production classes in virtual time, with seeded faults.

`simulate` runs one seed, `simulate_many` runs many; `Simulation` takes a plan and faults of your own. Below them,
`Simulator` is virtual time, `SimNet` and `SimTransport` are the network, and `SimSync` has the locks: with these, code
of your own can be tested in the same virtual time.
"""

from headgate.testing.faults import KINDS, Fault, draw_faults
from headgate.testing.many import Failure, simulate_many
from headgate.testing.plan import ProducerPlan, SimPlan, draw_plan
from headgate.testing.simnet import SimListener, SimNet, SimTransport
from headgate.testing.simstream import Cut, SimStream, Tap, Weather
from headgate.testing.simulation import Simulation, SimulationOutcome, simulate
from headgate.testing.simulator import Actor, Scheduled, Simulator, fork
from headgate.testing.waiting import SimLock, SimSync, SimWaiter

__all__ = [
    "KINDS",
    "Actor",
    "Cut",
    "Failure",
    "Fault",
    "ProducerPlan",
    "Scheduled",
    "SimListener",
    "SimLock",
    "SimNet",
    "SimPlan",
    "SimStream",
    "SimSync",
    "SimTransport",
    "SimWaiter",
    "Simulation",
    "SimulationOutcome",
    "Simulator",
    "Tap",
    "Weather",
    "draw_faults",
    "draw_plan",
    "fork",
    "simulate",
    "simulate_many",
]
