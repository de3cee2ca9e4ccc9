"""Two of the pipelines of `tests/pipeline/test_why_pipelines.py` on Spark, where each worker is a process."""

import pytest

pytest.importorskip("pyspark")

from tests.support.slow_pipelines import (
    HOT_KEY,
    HOT_SHARE,
    QUICK,
    Cities,
    Numbers,
    asked,
    burn,
    busiest,
    drop,
    is_in,
    nap,
)

import headgate as hg
from headgate.observe import Cause

pytestmark = pytest.mark.timeout(300)  # the first may start a session


BEGINS_S = 90.0
"""How long Spark may take to start workers."""


@pytest.fixture
def env(spark):
    return hg.environment(spark, parallelism=2, settings=QUICK).disable_operator_chaining()


@pytest.mark.timing
def test_a_map_that_computes_on_spark(env):
    env.from_source(Numbers()).map(burn).for_each(drop)
    with asked(env, begins_s=BEGINS_S) as (found, _):
        assert (found.cause, found.vertex, found.operator, found.subtask) == (Cause.CPU, 1, "map(burn)", None), found
        assert is_in(found.function, burn), found


@pytest.mark.timing
def test_a_key_that_most_records_have_on_spark(env):
    env.from_source(Cities()).key_by(lambda record: record[0]).map(nap).for_each(drop)
    with asked(env, begins_s=BEGINS_S) as (found, view):
        assert (found.cause, found.vertex, found.operator) == (Cause.HOT_KEY, 1, "map(nap)"), found
        assert found.subtask == busiest(view, 1)
        assert found.key == repr(HOT_KEY)
        assert found.share == pytest.approx(HOT_SHARE, abs=0.15)
