"""The API of pipelines: streams, and the environment that runs them.

The methods of streams only add nodes to a graph; `execute` of the environment makes a plan of it and runs that.
"""

from headgate.api.connected import ConnectedStreams
from headgate.api.environment import StreamExecutionEnvironment, environment
from headgate.api.joined import JoinedStreams
from headgate.api.keyed import KeyedStream
from headgate.api.results import Results
from headgate.api.sink import DataStreamSink
from headgate.api.split import SplitStream
from headgate.api.stream import DataStream
from headgate.api.windowed import AllWindowedStream, WindowedStream

__all__ = [
    "AllWindowedStream",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "JoinedStreams",
    "KeyedStream",
    "Results",
    "SplitStream",
    "StreamExecutionEnvironment",
    "WindowedStream",
    "environment",
]
