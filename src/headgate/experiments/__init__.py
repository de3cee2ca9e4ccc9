"""`headgate experiment`: back pressure measured on real jobs, with a verdict.

`follow` (behaviour B3) slows a producer and a consumer in turn; `neighbour` (B4) runs a slow consumer beside a fast
one. Both run a pipeline of user functions (`tasks`) by a `schedule` and take their `figures` from the job's own meters.
"""
