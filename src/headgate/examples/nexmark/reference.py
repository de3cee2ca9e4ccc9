"""NEXMark's queries as plain PySpark over all events at once: the right answers for the pipelines of `queries`.

Only the constants of the queries are headgate's. Each query takes three DataFrames and returns one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from headgate.examples.nexmark.generator import Auction, Bid, Person, events
from headgate.examples.nexmark.queries import MINUTE, SLIDE, SOME_CATEGORY, SOME_STATES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMAS = {
    Person: "id long, name string, email string, city string, state string, at long",
    Auction: "id long, item string, description string, initial_bid long, reserve long, at long, expires long,"
    " seller long, category long",
    Bid: "auction long, bidder long, price long, at long, note string",
}
"""The columns of each kind of event."""


def frames(spark: SparkSession, count: int) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return persons, auctions and bids of the first events."""
    made = events(count)
    persons, auctions, bids = (
        spark.createDataFrame([tuple(one) for one in made if type(one) is kind], schema)
        for kind, schema in SCHEMAS.items()
    )
    return persons, auctions, bids


def minute_of(at: str) -> Column:
    """Return the begin of a time's minute."""
    return f.col(at) - f.col(at) % int(MINUTE)


def q0(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return all bids."""
    return bids


def q1(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return all bids, in another currency."""
    return bids.select("auction", "bidder", f.expr("price * 908 div 1000").alias("price"), "at")


def q2(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return bids for certain auctions."""
    return bids.where("auction % 123 = 0").select("auction", "price")


def q3(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return sellers in certain states of things of a certain category."""
    sellers = persons.where(f.col("state").isin(*SOME_STATES))
    offers = auctions.where(f.col("category") == SOME_CATEGORY).select(f.col("id").alias("auction"), "seller")
    return sellers.join(offers, f.col("id") == f.col("seller")).select("name", "city", "state", "auction")


def sales(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Return the highest bid of each auction."""
    offers = auctions.withColumnRenamed("at", "begins")
    same = (f.col("auction") == f.col("id")) & (f.col("at") >= f.col("begins")) & (f.col("at") < f.col("expires"))
    sold = offers.join(bids, same).groupBy("id", "seller", "category", "expires")
    return sold.agg(f.max("price").alias("price"))


def q4(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return the average price of each category."""
    return sales(auctions, bids).groupBy("category").agg(f.avg("price"))


def q5(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return the auctions with most bids in the last minute, every ten seconds."""
    first = f.col("at") - f.col("at") % int(SLIDE) + int(SLIDE)
    ends = f.sequence(first, first + int(MINUTE - SLIDE), f.lit(int(SLIDE)))
    counts = bids.withColumn("end", f.explode(ends)).groupBy("end", "auction").count()
    most = counts.groupBy("end").agg(f.max("count").alias("most"))
    return counts.join(most, "end").where("count = most").select("end", "auction", "count")


def q6(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return the average price of the last ten sales of each seller, at every sale."""
    last_ten = "avg(price) over (partition by seller order by expires, id rows between 9 preceding and current row)"
    return sales(auctions, bids).select("seller", "id", f.expr(last_ten))


def q7(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return the highest bid of each minute."""
    best = f.expr("max(struct(price, -at, -auction, -bidder))").alias("best")
    highest = bids.withColumn("minute", minute_of("at")).groupBy("minute").agg(best)
    return highest.select("minute", f.expr("-best.col3"), f.expr("-best.col4"), "best.price", f.expr("-best.col2"))


def q8(persons: DataFrame, auctions: DataFrame, bids: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return persons who registered and began an auction within the same minute."""
    sellers = auctions.select(f.col("seller").alias("id"), minute_of("at").alias("minute")).distinct()
    came = persons.select("id", "name", minute_of("at").alias("minute"))
    return came.join(sellers, ["id", "minute"]).select("id", "name", "minute")


QUERIES: dict[int, Callable[[DataFrame, DataFrame, DataFrame], DataFrame]] = dict(
    enumerate([q0, q1, q2, q3, q4, q5, q6, q7, q8])
)
"""All queries, by number."""


def main(spark: SparkSession, query: int = 5, count: int = 10_000) -> list[tuple[Any, ...]]:
    """Return the sorted answer to a query about the first events."""
    return sorted(tuple(row) for row in QUERIES[query](*frames(spark, count)).collect())
