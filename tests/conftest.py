"""Shared fixtures: where the real collections are, and thread counts that keep tests repeatable."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real collections; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the real collections are not here")
    return SHARED
