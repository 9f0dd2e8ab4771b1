"""The metadata of the package: bounds, extras, and the pages that name them."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("oldest", ROOT / "tools/oldest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_dependency_has_a_lower_bound(tool):
    assert len(list(tool.oldest(PROJECT["dependencies"]))) == len(PROJECT["dependencies"])
    with pytest.raises(ValueError, match="no lower bound"):
        list(tool.oldest(["numpy<3"]))


def test_the_oldest_version_is_the_bound(tool):
    assert list(tool.oldest(["numpy>=2.0", "hardneg[dev]>=1"])) == ["numpy==2.0", "hardneg==1"]


def test_every_extra_stands_on_the_page_of_installing():
    page = (ROOT / "docs/how-to/install.md").read_text("utf-8")
    assert [name for name in PROJECT["optional-dependencies"] if f"`{name}`" not in page] == []
