"""What users write pipelines with: streams, and the environment that runs them.

A record's journey begins here as a sentence about it: everything in this package only adds nodes to a graph.
"""

from headgate.api.connected import ConnectedStreams, JoinedStreams
from headgate.api.environment import StreamExecutionEnvironment, environment
from headgate.api.keyed import KeyedStream
from headgate.api.results import Results
from headgate.api.stream import DataStream
from headgate.api.tuning import DataStreamSink
from headgate.api.windowed import AllWindowedStream, WindowedStream

__all__ = [
    "AllWindowedStream",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "JoinedStreams",
    "KeyedStream",
    "Results",
    "StreamExecutionEnvironment",
    "WindowedStream",
    "environment",
]
