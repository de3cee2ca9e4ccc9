"""Spark as a host: workers in a barrier stage, the coordinator in the driver, DataFrames in and out."""

from headgate.spark.host import SparkHost

__all__ = ["SparkHost"]
