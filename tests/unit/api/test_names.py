"""Names with control characters: wherever they are shown, a terminal shows them and does nothing else."""

import logging

import pytest

import headgate as hg
from headgate.names import printable

NASTY = "a\x1b[31m\x07\r\x9bb\u202e\n\udc80c"
SHOWN = r"a\x1b[31m\x07\r\x9bb\u202e\n\udc80c"


def is_harmless(text):
    return all(one.isprintable() or one == "\n" for one in text)


def test_control_characters_of_names_are_escaped_once():
    assert printable(NASTY) == SHOWN
    assert printable(SHOWN) == SHOWN
    assert printable("wörter 数 -> map") == "wörter 数 -> map"


@pytest.mark.spec("K6")
def test_operators_and_jobs_are_shown_escaped_everywhere(caplog, capfd):
    caplog.set_level(logging.DEBUG, logger="headgate")
    env = hg.environment(local=True, parallelism=2)
    stream = env.from_collection([1, 0]).name(NASTY).rebalance().map(lambda n: 1 // n).name(NASTY)
    stream.for_each(lambda _: None)
    for form in ("text", "mermaid"):
        assert SHOWN in env.explain(form)
        assert is_harmless(env.explain(form))
    job = env.execute_async(NASTY)
    with pytest.raises(hg.UserCodeError) as caught:
        job.await_termination(30)
    assert caught.value.operator == SHOWN
    assert is_harmless(str(caught.value))
    assert job.name == SHOWN
    assert [vertex.name for vertex in job.last_progress.vertices] == [SHOWN, f"{SHOWN} -> for_each"]
    assert any(SHOWN in event.text for event in job.events)
    assert all(is_harmless(event.text) for event in job.events)
    assert is_harmless(caplog.text)
    assert is_harmless(capfd.readouterr().err)


def test_an_error_text_with_control_characters_is_escaped_in_the_events():
    def fail(_):
        raise ValueError("\x1b[2Jgone")

    env = hg.environment(local=True, parallelism=1)
    env.from_collection([1]).map(fail).for_each(lambda _: None)
    job = env.execute_async()
    with pytest.raises(hg.UserCodeError):
        job.await_termination(30)
    assert all(is_harmless(event.text) for event in job.events)
