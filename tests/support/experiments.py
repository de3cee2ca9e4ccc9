"""Checks of an experiment's figures that hold on any machine."""

import pytest


def check_follow(figures: dict) -> None:
    """Check that the figures and the verdict of `follow` are consistent."""
    assert figures["experiment"] == "follow"
    assert figures["full_per_s"] > 0
    assert 100 < figures["record_bytes"] < 110
    end_s = figures["phases"][-1]["end_s"]
    problems = 0
    for phase, expected in zip(figures["phases"], (0.6, 0.3, 1.0, 0.3, 1.0), strict=True):
        assert phase["expected_share"] == expected
        assert phase["end_s"] - phase["begin_s"] == pytest.approx(figures["phase_seconds"])
        assert phase["share"] == pytest.approx(phase["consumer_per_s"] / figures["full_per_s"])
        ratio = phase["producer_to_consumer"]
        if phase["consumer_per_s"]:
            assert ratio == pytest.approx(phase["producer_per_s"] / phase["consumer_per_s"])
            off = abs(ratio - 1) > 0.05
            assert any("of what the consumer took" in one for one in phase["problems"]) == off
        else:
            assert "one of the two stood still" in phase["problems"]
        assert ("the producer did not follow" in phase["problems"]) == (phase["followed_after_s"] is None)
        problems += len(phase["problems"])
        assert (phase["latency_p50_ms"] or 0) <= (phase["latency_max_ms"] or 0)
    most = max(phase["in_flight_bytes"] or 0 for phase in figures["phases"])
    assert 0 < most <= figures["ceiling_bytes"], "whatever the machine does, this holds"
    assert figures["verdict"]["passed"] == (problems == 0)
    assert figures["verdict"]["line"].startswith("PASS: " if problems == 0 else "FAIL: ")
    samples = figures["samples"]
    assert samples[0]["begin_s"] == 0
    assert samples[-1]["end_s"] == pytest.approx(end_s)
    for steps in figures["steps"].values():
        assert steps["step_s"] == 0.1
        assert steps["start_s"] <= 0.1
        assert steps["start_s"] + len(steps["per_s"]) * 0.1 >= end_s - 0.2
        assert sum(one is None for one in steps["per_s"]) <= 5


def check_shares(figures: dict) -> None:
    """Check that the producer followed in every phase, and both reached full speed again; wide margins allow for load.

    A throttle cannot be too fast on any machine, so the upper limits are the sharper ones.
    """
    speeds = {phase["name"]: phase for phase in figures["phases"]}
    for name, phase in speeds.items():
        assert phase["consumer_per_s"], f"{name}: the consumer stood still"
        ratio = phase["producer_per_s"] / phase["consumer_per_s"]
        assert 0.67 < ratio < 1.5, f"{name}: the producer gave out {ratio:.2f} of what the consumer took"
        share, expected = phase["share"], phase["expected_share"]
        assert share > 0.2 * expected, f"{name}: {share:.2f} of full speed instead of {expected}"
        if expected < 1:
            assert share < 1.3 * expected, f"{name}: {share:.2f} of full speed instead of {expected}"
    for slowed, released in (("consumer 30 %", "released"), ("again 30 %", "again released")):
        if released in speeds:
            before, after = speeds[slowed]["share"], speeds[released]["share"]
            assert after > 1.4 * before, f"{released}: {after:.2f} of full speed, after {before:.2f} when it was slowed"


def check_neighbour(figures: dict) -> None:
    """Check that the figures and the verdict of `neighbour` are consistent."""
    assert figures["experiment"] == "neighbour"
    assert [run["flow_control"] for run in figures["runs"]] == ["credit", "tcp"]
    for run in figures["runs"]:
        assert run["keeps"] == pytest.approx(run["beside_per_s"] / run["alone_per_s"])
        assert 0 < run["slow_per_s"] < run["alone_per_s"]
        for barriers in run["barriers"].values():
            assert barriers["count"] > 0
            assert 0 < barriers["p50_ms"] <= barriers["max_ms"]
    credit, tcp = figures["runs"]
    assert tcp["keeps"] < credit["keeps"], "that is what credit is for"
    assert figures["verdict"]["passed"] == (credit["keeps"] >= 0.9 and tcp["keeps"] <= 0.5)
