"""The project's own files agree with each other."""

import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_lowest_versions_that_are_tested_are_those_that_are_promised():
    lines = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    tested = {line.replace("==", ">=") for line in lines if not line.startswith("#")}
    assert tested == set(PROJECT["dependencies"])


def test_the_version_is_that_of_the_newest_entry_of_the_changelog():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == f"## {PROJECT['version']}"


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {PROJECT['version']}" in text.splitlines()


@pytest.mark.parametrize("package", ["memory", "kernels", "svgd", "t3"])
def test_every_package_tells_its_version(package):
    assert importlib.import_module(package).__version__.split(".")[0].isdigit()
