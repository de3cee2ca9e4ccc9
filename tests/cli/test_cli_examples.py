"""`headgate examples`: list, print and run."""

import pytest
from tests.support.commands import command

import headgate as hg
from headgate.cli import main
from headgate.cli.examples import find_example
from headgate.examples import EXAMPLES, describe
from headgate.examples.nexmark import queries


def test_examples_are_listed_with_their_first_line(capsys):
    assert main(["examples"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["example", "what", "it", "shows"]
    assert [line.split()[0] for line in lines] == list(EXAMPLES)
    assert lines[0].endswith(describe("word_count"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_printed_source_is_the_file(name, capsys):
    assert main(["examples", name, "--source"]) == 0
    assert capsys.readouterr().out == find_example(name).read_text("utf-8")


def test_one_is_run_without_spark(capsys):
    assert main(["examples", "word-count", "--local", "--parallelism", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10, "the most frequent words"


def test_an_example_gets_its_arguments(capsys):
    assert main(["examples", "nexmark", "7", "800", "--local", "--parallelism", "2"]) == 0
    ((_, *answer),) = queries.main(hg.environment(local=True, parallelism=2), query=7, count=800)
    assert capsys.readouterr().out.split()[1:] == list(map(str, answer))


def test_unknown_examples_are_refused(capsys):
    assert main(["examples", "word_cont"]) == 2
    assert "did you mean word_count?" in capsys.readouterr().err
    assert main(["examples", "nonesuch"]) == 2
    assert "there are word_count, " in capsys.readouterr().err
    assert main(["examples", "dataframe_to_parquet", "--local"]) == 2
    assert "run it without --local" in capsys.readouterr().err


def test_listing_does_not_import_them():
    with command("examples", PYTHONPROFILEIMPORTTIME="1") as listing:
        assert listing.end() == 0
        assert "headgate.examples" in listing.err
        assert not [line for line in listing.err.splitlines() if line.endswith((" pyspark", " pyarrow"))]
