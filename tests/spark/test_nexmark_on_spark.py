"""NEXMark on Spark: the pipelines answer what plain PySpark answers about the same events."""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from tests.examples.answers import Nexmark
from tests.examples.conftest import tiny_buffers

import headgate as hg
from headgate.examples.nexmark import queries, reference
from headgate.spark.session import slots

COUNT = 4_000

pytestmark = pytest.mark.timeout(300)  # the first test waits for the session and the references


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> dict[int, list[tuple]]:
    """What plain PySpark says."""
    frames = [frame.cache() for frame in reference.frames(spark, COUNT)]
    found = {n: sorted(map(tuple, query(*frames).collect())) for n, query in reference.QUERIES.items()}
    for frame in frames:
        frame.unpersist()
    return found


@pytest.mark.parametrize("query", queries.QUERIES)
def test_pyspark_and_plain_python_agree(answers, query):
    assert answers[query] == Nexmark(COUNT).answer(query)


@pytest.mark.parametrize("buffers", ["default", "tiny"])
@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("query", queries.QUERIES)
def test_pipelines_and_pyspark_agree(spark, answers, query, parallelism, buffers):
    if (there := slots(spark) or 0) < parallelism:
        pytest.skip(f"{parallelism} workers need as many slots, and this session has {there}")
    settings = tiny_buffers(parallelism) if buffers == "tiny" else {}
    env = hg.environment(spark, parallelism=parallelism, settings=settings)
    assert queries.main(env, query, COUNT) == answers[query]


@pytest.mark.parametrize("query", queries.QUERIES)
def test_the_local_host_and_pyspark_agree(answers, query):
    assert queries.main(hg.environment(local=True, parallelism=2), query, COUNT) == answers[query]
