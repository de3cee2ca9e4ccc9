"""Why a pipeline is as fast as it is: `diagnose` names the task that limits it, the cause, and one thing to try.

`diagnose` is a pure function of a `JobView`, the last seconds of every task, and sampled stacks. Read in this order:

    thresholds      every number that a rule compares with, with its reason
    rules           the rules, the reason for their order, and `diagnose`
    exchange_rules  the rules about an exchange between two vertices
    evidence        what a rule reads: the bottleneck, its tasks, their time, sentences for the answer
    bottleneck      which vertex or exchange limits the job
    busy_time       where the busy time of tasks is spent
    hot_spot        the operator and function in which tasks are sampled most often
    facts           the view, the past and the samples, joined by task, vertex and process
    advice, text    the sentences of the answer
    diagnosis       the answer as data
"""

from headgate.observe.why.diagnosis import Cause, Diagnosis
from headgate.observe.why.rules import RULES, diagnose
from headgate.observe.why.text import render

__all__ = ["RULES", "Cause", "Diagnosis", "diagnose", "render"]
