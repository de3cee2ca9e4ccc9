"""Back pressure shown on real jobs: `headgate experiment` runs these, and says whether what should happen does.

`follow` (B3) slows a producer and a consumer by turns; `neighbour` (B4) puts a slow consumer beside a fast one. Both
run a pipeline of user functions (`flow`) by a `schedule`, take their `figures` from the job's own meters, and judge
them.
"""

from headgate.experiments.follow import Follow, FollowRun, start_follow
from headgate.experiments.neighbour import Neighbour, NeighbourRun, start_neighbour, verdict_of
from headgate.experiments.running import Verdict, Where
from headgate.experiments.schedule import FOLLOW, Phase, Schedule, neighbour_phases

__all__ = [
    "FOLLOW",
    "Follow",
    "FollowRun",
    "Neighbour",
    "NeighbourRun",
    "Phase",
    "Schedule",
    "Verdict",
    "Where",
    "neighbour_phases",
    "start_follow",
    "start_neighbour",
    "verdict_of",
]
