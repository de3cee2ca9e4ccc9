"""headgate: push-based, credit-controlled data exchange for PySpark.

`import headgate as hg` is all that a pipeline needs. What it names is imported when it is first used, so the import
itself takes no time.
"""

from typing import TYPE_CHECKING

from headgate.version import __version__ as __version__

if TYPE_CHECKING:
    from headgate.api import (
        AllWindowedStream,
        ConnectedStreams,
        DataStream,
        DataStreamSink,
        JoinedStreams,
        KeyedStream,
        Results,
        WindowedStream,
    )
    from headgate.api.environment import StreamExecutionEnvironment, environment
    from headgate.api.sink_files import FileSink
    from headgate.api.sinks import CollectSink, ForEachSink, MemorySink, PrintSink
    from headgate.api.source_files import FileSource
    from headgate.api.source_socket import SocketTextSource
    from headgate.api.sources import CollectionSource, GeneratorSource, RateSource
    from headgate.config import RuntimeMode, Settings
    from headgate.coordinator import Job, JobStatus, Progress
    from headgate.errors import ConfigError, HeadgateError, UserCodeError
    from headgate.record import Serializer
    from headgate.task.co_functions import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction
    from headgate.task.functions import (
        AggregateFunction,
        FilterFunction,
        FlatMapFunction,
        Function,
        KeyedProcessFunction,
        MapFunction,
        OutputTag,
        ProcessFunction,
        ReduceFunction,
        RuntimeContext,
        TimerService,
    )
    from headgate.task.sink import Sink
    from headgate.task.source import Source, Wait
    from headgate.task.watermarks import WatermarkStrategy
    from headgate.task.windows import (
        CountSlidingWindows,
        CountTumblingWindows,
        CountWindow,
        EventTimeSessionWindows,
        GlobalWindow,
        GlobalWindows,
        ProcessAllWindowFunction,
        ProcessingTimeSessionWindows,
        ProcessWindowFunction,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        Time,
        TimeWindow,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
    )

__all__ = [
    "AggregateFunction",
    "AllWindowedStream",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectSink",
    "CollectionSource",
    "ConfigError",
    "ConnectedStreams",
    "CountSlidingWindows",
    "CountTumblingWindows",
    "CountWindow",
    "DataStream",
    "DataStreamSink",
    "EventTimeSessionWindows",
    "FileSink",
    "FileSource",
    "FilterFunction",
    "FlatMapFunction",
    "ForEachSink",
    "Function",
    "GeneratorSource",
    "GlobalWindow",
    "GlobalWindows",
    "HeadgateError",
    "Job",
    "JobStatus",
    "JoinedStreams",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "MemorySink",
    "OutputTag",
    "PrintSink",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "Progress",
    "RateSource",
    "ReduceFunction",
    "Results",
    "RuntimeContext",
    "RuntimeMode",
    "Serializer",
    "Settings",
    "Sink",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SocketTextSource",
    "Source",
    "StreamExecutionEnvironment",
    "Time",
    "TimeWindow",
    "TimerService",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UserCodeError",
    "Wait",
    "WatermarkStrategy",
    "WindowedStream",
    "environment",
]


# Module -> what is taken from it; the same as above, for when the program runs.
_MODULES = {
    "headgate.api": (
        "AllWindowedStream ConnectedStreams DataStream DataStreamSink JoinedStreams KeyedStream Results WindowedStream"
    ),
    "headgate.api.environment": "StreamExecutionEnvironment environment",
    "headgate.api.sink_files": "FileSink",
    "headgate.api.sinks": "CollectSink ForEachSink MemorySink PrintSink",
    "headgate.api.source_files": "FileSource",
    "headgate.api.source_socket": "SocketTextSource",
    "headgate.api.sources": "CollectionSource GeneratorSource RateSource",
    "headgate.config": "RuntimeMode Settings",
    "headgate.coordinator": "Job JobStatus Progress",
    "headgate.errors": "ConfigError HeadgateError UserCodeError",
    "headgate.record": "Serializer",
    "headgate.task.co_functions": "CoFlatMapFunction CoMapFunction CoProcessFunction KeyedCoProcessFunction",
    "headgate.task.functions": (
        "AggregateFunction FilterFunction FlatMapFunction Function KeyedProcessFunction MapFunction OutputTag "
        "ProcessFunction ReduceFunction RuntimeContext TimerService"
    ),
    "headgate.task.sink": "Sink",
    "headgate.task.source": "Source Wait",
    "headgate.task.watermarks": "WatermarkStrategy",
    "headgate.task.windows": (
        "CountSlidingWindows CountTumblingWindows CountWindow EventTimeSessionWindows GlobalWindow GlobalWindows "
        "ProcessAllWindowFunction ProcessWindowFunction ProcessingTimeSessionWindows SlidingEventTimeWindows "
        "SlidingProcessingTimeWindows Time TimeWindow TumblingEventTimeWindows TumblingProcessingTimeWindows"
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - the first use of a name pays for it

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
