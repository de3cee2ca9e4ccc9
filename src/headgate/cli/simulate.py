"""`headgate simulate`: run the exchange with seeded faults in virtual time, and print the seeds that fail.

Results are printed on stdout, progress on stderr.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated

import typer

from headgate.testing import Failure, SimulationOutcome, simulate_many
from headgate.testing import simulate as simulate_one

__all__ = ["simulate"]

_PLAIN_PROGRESS_S = 5.0  # between two lines of progress without a terminal


def simulate(
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Run only this seed, and print its plan.")
    ] = None,
    *,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="The number of seeds.")] = 200,
    start: Annotated[int, typer.Option("--start", min=0, metavar="N", help="The first seed.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, metavar="K", help="The number of processes; default: the number of cores."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print every event.")] = False,
) -> None:
    """Simulate the exchange: random sizes, random faults, virtual time, every invariant checked at every step.

    A seed repeats the same run. Exits with 1 if a seed fails.
    """
    if seed is not None:
        outcome = simulate_one(seed)
        _show(outcome, trace=trace)
        if outcome.failure is not None:
            raise typer.Exit(1)
        return
    began_s = time.monotonic()
    with _progress(seeds) as progress:
        failures = simulate_many(range(start, start + seeds), jobs=jobs, progress=progress)
    took_s = time.monotonic() - began_s
    for failure in failures:
        _show_failure(failure)
    print(f"{seeds} seeds from {start} in {took_s:.1f} s: {len(failures) or 'none'} failed")
    if failures:
        raise typer.Exit(1)


def _show(outcome: SimulationOutcome, *, trace: bool) -> None:
    if trace:
        print("\n".join(outcome.trace))
    plan = outcome.plan
    for one in fields(plan):
        if one.name != "producers":
            print(f"{one.name}: {getattr(plan, one.name)}")
    for number, producer in enumerate(plan.producers):
        kind = "broadcast" if producer.broadcast else "writer" if producer.through_writer else "direct"
        print(f"producer {number}: worker {producer.worker}, {producer.records} records, {kind}")
    print(f"faults: {'; '.join(outcome.faults) or 'none'}")
    print(
        f"{outcome.steps} actions in {outcome.virtual_ns / 1e9:.6f} s of virtual time, {outcome.records} records read"
    )
    print(f"trace: {outcome.trace_hash}")
    if outcome.failure is not None:
        print(f"FAILED: {outcome.failure}\nRepeat: {outcome.repeat}")


def _show_failure(failure: Failure) -> None:
    print(
        f"seed {failure.seed}: {'; '.join(failure.faults) or 'no faults'}\n{failure.text}\nRepeat: {failure.repeat}\n"
    )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that shows progress: a bar, or without a terminal a line every few seconds."""
    if not sys.stderr.isatty():
        yield _plain_progress(total)
        return
    from rich.console import Console  # noqa: PLC0415 - only for terminals
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(f"simulating on {os.cpu_count()} cores", total=total)
        yield lambda done: bar.update(task, completed=done, refresh=True)


def _plain_progress(total: int) -> Callable[[int], object]:
    last_s = time.monotonic()

    def show(done: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= _PLAIN_PROGRESS_S:
            last_s = now_s
            print(f"simulate: {done} of {total} seeds", file=sys.stderr, flush=True)

    return show
