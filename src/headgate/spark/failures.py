"""The errors of Spark's jobs in a line or two: Spark's own texts are pages of JVM frames."""

from __future__ import annotations

import re

from headgate.errors import ConfigError, HeadgateError, TransportError

__all__ = ["spark_failure", "was_cancelled"]

_MAX = 2000  # characters


def was_cancelled(error: BaseException) -> bool:
    """Return True if Spark's job was cancelled.

    >>> was_cancelled(RuntimeError("Job 3 cancelled as part of cancellation of all jobs"))
    True
    """
    text = str(error)
    return bool(re.search(r"\bJob \d+ cancelled\b|OPERATION_CANCELED|SPARK_JOB_CANCELLED", text))


def spark_failure(error: BaseException) -> HeadgateError:
    r"""Return why Spark's job has failed, without JVM frames.

    >>> spark_failure(RuntimeError("Job aborted\n ExecutorLostFailure (executor 1 exited): it left\n\tat org.x"))
    TransportError('a worker was lost: ExecutorLostFailure (executor 1 exited): it left (Spark)')
    """
    text = str(error)
    if missing := re.search(
        r"ModuleNotFoundError: No module named '(headgate|pyarrow|msgspec|cryptography)[\w.]*'", text
    ):
        return ConfigError(
            f"Spark's Python workers have no {missing[1]}: install headgate where they run, and let PYSPARK_PYTHON "
            "name that interpreter"
        )
    if python := re.search(r"(Traceback \(most recent call last\):\n.*?\n\S[^\n]*)\n(?!  )", text, re.DOTALL):
        return HeadgateError(f"a worker could not run on Spark:\n{python[1]}"[:_MAX])
    lines = [line.strip() for line in text.splitlines() if not re.match(r"\s*(at |\.\.\. \d+ more|$)", line)]
    causes = [line for line in lines if re.search(r"Lost|exited|crashed|SPARK-\d|Exception: ", line)]
    text = (causes or lines or [type(error).__name__])[-1]
    text = re.sub(r"^(?:[a-z]\w*\.)+(?=[A-Z])", "", text)
    lost = re.search(r"Lost|exited|crashed", text)
    return TransportError(f"{'a worker was lost' if lost else 'Spark ended the job'}: {text}"[:_MAX], peer="Spark")
