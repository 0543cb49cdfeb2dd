"""What is said when Java or pyspark is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.errors import Unavailable
from strandline.pipeline import requirements


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "works"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0", False)]
)
def test_the_version_of_java_is_checked(tmp_path, monkeypatch, version, works):
    """The Java of JAVA_HOME counts, as for Spark."""
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if works:
        assert version in requirements.java()
    else:
        with pytest.raises(Unavailable, match=r"is too old .* Java 17 or newer"):
            requirements.java()


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    """Without Java in JAVA_HOME or in PATH, and without pyspark."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "JAVA_HOME" in requirements.missing()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install it" in requirements.missing()
    monkeypatch.setattr(requirements, "find_spec", lambda _: None)
    assert requirements.missing() == "pyspark is not installed; pip install 'strandline[spark]'"
