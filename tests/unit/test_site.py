"""The documentation site: built without a warning, and read without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="mkdocs-material is not installed (pip install -e '.[docs]')")

ROOT = Path(__file__).resolve().parents[2]


def built(place, folder=ROOT):
    """Build the site of a folder by the words of `make docs`; returns the finished process."""
    words = re.search(r"-m mkdocs (.+)", (ROOT / "Makefile").read_text("utf-8"))[1].split()
    command = [sys.executable, "-m", "mkdocs", *words, "--site-dir", str(place)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    done = built(place)
    assert done.returncode == 0, done.stderr
    return place


def test_a_link_that_leads_nowhere_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[script](../examples/script.sh)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: small\n")
    done = built(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "../examples/script.sh" in done.stderr


def test_every_page_is_built(site):
    found = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert {page.replace("README", "index") for page in pages} <= found


def test_nothing_is_fetched_when_a_page_is_read(site):
    source = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//""")
    style = re.compile(r"""<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|icon)[^>]*\bhref=["']?(?:https?:)?//""")
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not source.search(text), page
        assert not style.search(text), page


def test_search_works_from_the_disk(site):
    # a page from the disk may fetch nothing, so the index of words is a script
    assert (site / "search/search_index.js").stat().st_size > 100_000


def test_anchors_lead_somewhere(site):
    anchors = {}
    for page in site.rglob("*.html"):
        anchors[page.resolve()] = set(re.findall(r"""\bid=["']?([^"'\s>]+)""", page.read_text("utf-8")))
    missing = []
    for page in anchors:
        text = re.sub(r"<pre.*?</pre>", "", page.read_text("utf-8"), flags=re.DOTALL)
        for place, anchor in re.findall(r"""href=["']?(?!https?:)([^"'#\s>]*)#([^"'\s>]+)""", text):
            target = (page.parent / place).resolve() if place else page
            if target in anchors and anchor not in anchors[target] and not anchor.startswith("__"):
                missing.append((page.name, place, anchor))
    assert missing == []
