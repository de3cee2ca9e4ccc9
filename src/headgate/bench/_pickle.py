"""The baseline of the record cases: what Python's own pickle does with the same batches."""

import pickle

__all__ = ["pickled_and_back"]


def pickled_and_back(batch: list[object], times: int) -> None:
    """Dump and load a batch, again and again."""
    dumps, loads = pickle.dumps, pickle.loads
    for _ in range(times):
        loads(dumps(batch, 5))
