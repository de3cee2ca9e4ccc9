"""`headgate doctor`: its findings."""

import json
from importlib import metadata

import pytest

from headgate.cli import doctor as cli_doctor
from headgate.cli import main
from headgate.cli.doctor import Finding, Severity, examine
from headgate.config import SETTINGS
from headgate.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment, raising=False)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)


def found(what):
    return next(one for one in examine() if one.what == what)


def test_all_findings_are_shown(capsys):
    assert main(["doctor"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["verdict", "what", "found"]
    names = [line.split()[1] for line in lines]
    assert names[:4] == ["headgate", "Python", "Java", "pyspark"]
    assert {"ports", "settings", "security"} <= set(names)


def test_json_is_the_same(capsys):
    assert main(["doctor", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {"what": "headgate", "verdict": "ok", "text": metadata.version("headgate")}
    assert [row["what"] for row in rows] == [one.what for one in examine()]


def test_a_failed_check_is_code_1(monkeypatch, capsys):
    def no_java():
        raise ConfigError("there is no Java")

    monkeypatch.setattr("headgate.spark.java.find_java", no_java)
    assert found("Java") == Finding("Java", Severity.BAD, "there is no Java")
    assert main(["doctor"]) == 1
    assert "bad      Java      there is no Java" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "verdict", "said"),
    [("4.3.7", Severity.OK, "4.3.7"), ("4.4.0", Severity.NOTE, "requires"), ("3.5.1", Severity.NOTE, "requires")],
)
def test_versions_are_compared_with_the_requirements(version, verdict, said, monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "pyspark" else real(name))
    finding = found("pyspark")
    assert finding.verdict is verdict
    assert said in finding.text


def test_packages_that_are_missing(monkeypatch):
    real = metadata.version

    def version(name):
        if name in {"pyspark", "crc32c"}:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert found("pyspark") == Finding("pyspark", Severity.BAD, "not installed: pip install pyspark")
    assert found("crc32c").verdict is Severity.NOTE


def test_headgate_without_metadata_is_no_failure(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert found("pyspark").verdict is Severity.OK


def test_settings_and_insecure_ones(monkeypatch):
    monkeypatch.setenv("HEADGATE_NETWORK_INSECURE_PLAINTEXT", "true")
    assert "network.insecure_plaintext = " in found("settings").text
    assert found("security").verdict is Severity.NOTE
    monkeypatch.setenv("HEADGATE_NETWORK_INSECURE_PLAINTEXT", "perhaps")
    assert found("settings").verdict is Severity.BAD


def test_spark_that_does_not_start_is_a_finding(monkeypatch, capsys):
    def no_session(parallelism):
        raise RuntimeError("the JVM has gone")

    monkeypatch.setattr("headgate.spark.session.local_session", no_session)
    assert cli_doctor._try_spark() == Finding("Spark", Severity.BAD, "RuntimeError: the JVM has gone")
    assert main(["doctor", "--spark"]) == 1
