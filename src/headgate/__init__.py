"""headgate: push-based, credit-controlled data exchange for PySpark.

A pipeline needs only `import headgate as hg`. A name is imported from its module when it is first used, so that the
import itself is fast.
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
        SplitStream,
        WindowedStream,
    )
    from headgate.api.environment import StreamExecutionEnvironment, environment
    from headgate.config import RuntimeMode, Settings
    from headgate.connectors.collect import CollectSink, MemorySink
    from headgate.connectors.files.sink import FileSink
    from headgate.connectors.files.source import FileSource
    from headgate.connectors.for_each import ForEachSink
    from headgate.connectors.generators import CollectionSource, GeneratorSource, RateSource
    from headgate.connectors.print import PrintSink
    from headgate.connectors.socket_text import SocketTextSource
    from headgate.coordinator import Job, JobStatus, Progress
    from headgate.errors import ConfigError, HeadgateError, UserCodeError
    from headgate.functions.basic import (
        AggregateFunction,
        FilterFunction,
        FlatMapFunction,
        Function,
        MapFunction,
        OutputSelector,
        OutputTag,
        ReduceFunction,
        RuntimeContext,
    )
    from headgate.functions.connected import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction
    from headgate.functions.process import EventFunction, KeyedProcessFunction, ProcessFunction, TimerService
    from headgate.functions.sink import Sink
    from headgate.functions.source import Source, Wait
    from headgate.functions.watermarks import WatermarkGenerator, WatermarkStrategy
    from headgate.functions.windows import (
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
    from headgate.record import Serializer, UserEvent

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
    "EventFunction",
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
    "OutputSelector",
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
    "SplitStream",
    "StreamExecutionEnvironment",
    "Time",
    "TimeWindow",
    "TimerService",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UserCodeError",
    "UserEvent",
    "Wait",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "WindowedStream",
    "environment",
]


# Module -> the names imported from it: the imports above, at run time.
_MODULES = {
    "headgate.api": (
        "AllWindowedStream ConnectedStreams DataStream DataStreamSink JoinedStreams KeyedStream Results SplitStream "
        "WindowedStream"
    ),
    "headgate.api.environment": "StreamExecutionEnvironment environment",
    "headgate.connectors.files.sink": "FileSink",
    "headgate.connectors.collect": "CollectSink MemorySink",
    "headgate.connectors.for_each": "ForEachSink",
    "headgate.connectors.print": "PrintSink",
    "headgate.connectors.files.source": "FileSource",
    "headgate.connectors.socket_text": "SocketTextSource",
    "headgate.connectors.generators": "CollectionSource GeneratorSource RateSource",
    "headgate.config": "RuntimeMode Settings",
    "headgate.coordinator": "Job JobStatus Progress",
    "headgate.errors": "ConfigError HeadgateError UserCodeError",
    "headgate.record": "Serializer UserEvent",
    "headgate.functions.connected": "CoFlatMapFunction CoMapFunction CoProcessFunction KeyedCoProcessFunction",
    "headgate.functions.basic": (
        "AggregateFunction FilterFunction FlatMapFunction Function MapFunction OutputSelector OutputTag ReduceFunction "
        "RuntimeContext"
    ),
    "headgate.functions.process": "EventFunction KeyedProcessFunction ProcessFunction TimerService",
    "headgate.functions.sink": "Sink",
    "headgate.functions.source": "Source Wait",
    "headgate.functions.watermarks": "WatermarkGenerator WatermarkStrategy",
    "headgate.functions.windows": (
        "CountSlidingWindows CountTumblingWindows CountWindow EventTimeSessionWindows GlobalWindow GlobalWindows "
        "ProcessAllWindowFunction ProcessWindowFunction ProcessingTimeSessionWindows SlidingEventTimeWindows "
        "SlidingProcessingTimeWindows Time TimeWindow TumblingEventTimeWindows TumblingProcessingTimeWindows"
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - imported at the first use of a name

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
