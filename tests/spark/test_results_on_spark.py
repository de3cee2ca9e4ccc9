"""Results with the default settings, on Spark: the same as the program says, whatever the functions reuse."""

import pytest

pytest.importorskip("pyspark")

import headgate as hg

pytestmark = pytest.mark.timeout(300)  # the first test waits for the session


class Reused(hg.FlatMapFunction):
    """Gives out one dict again and again."""

    def open(self, context):
        self.one = {}

    def flat_map(self, value):
        self.one["n"] = value
        yield self.one


@pytest.mark.spec("K1")
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_one_object_given_out_again_and_again(spark, mode):
    env = hg.environment(spark, parallelism=2, runtime_mode=mode)
    rows = env.from_collection(range(4_000)).flat_map(Reused()).rebalance().map(lambda row: row["n"])
    assert sorted(rows.execute_and_collect()) == list(range(4_000))
