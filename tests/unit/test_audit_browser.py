"""The page of the audit in a real browser: pairs labelled by keyboard, the labels saved, and no text does harm."""

import shutil

import pytest

from hardneg.data.ids import Vocabulary
from hardneg.data.judgements import JudgedIds, read_judgements
from hardneg.diagnostics.audit_page import audit_page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright drives the browser, and is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian: apt install chromium)"),
]

PATIENCE = 120_000  # milliseconds; machines may be busy
SCRIPT = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
IDS = ["q 0", "q'1", 'q"2', "q3", "q<4>"]


def pair(id_, text):
    passage = {"passage_id": f"of {id_}", "title": "", "text": text}
    known = {"signals": {"text": 0.5}, "fired": ["text"], "source": "bm25", "episode": 1, "suspicion": 1.0}
    return {"query_id": id_, "query": text, **passage, "positives": [passage], **known}


@pytest.fixture(params=[1280, 400])
def page(request, tmp_path):
    """The page, opened without a network, with what its console says."""
    counts = {"queries": 5, "pairs": 9, "suspected": 5, "judged": 0, "signals": [], "left_out": {}, "sources": []}
    texts = [SCRIPT, "first \u202e second", "word" * 250_000, "plain", "plain"]
    facts = {**counts, "pool": "pool", "suspects": [pair(*each) for each in zip(IDS, texts, strict=True)]}
    rows = {
        ("old one", "p"): ("negative", 2),
        (IDS[0], f"of {IDS[0]}"): ("unsure", 3),
    }  # the second is judged anew
    known = JudgedIds(tmp_path, rows).known(Vocabulary([IDS[0], "old one"]), Vocabulary([f"of {IDS[0]}", "p"]))
    (tmp_path / "page.html").write_bytes(audit_page(facts, known))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size = {"width": request.param, "height": 900}
        opened = browser.new_context(viewport=size, offline=True, accept_downloads=True).new_page()
        opened.set_default_timeout(PATIENCE)
        opened.said = []
        opened.on("console", lambda message: opened.said.append((message.type, message.text)))
        opened.on("pageerror", lambda fault: opened.said.append(("error", str(fault))))
        opened.goto(f"file://{tmp_path / 'page.html'}", timeout=PATIENCE)
        yield opened
        browser.close()


def test_labels_by_keyboard_are_saved_as_judgements(page, tmp_path):
    page.focus(".audit .pair")
    for key in "rnjpkkxnu":  # 0 and 1, pass 2, 3; back to 3 and 2, no label to take back, 2 and 3 again
        page.keyboard.press(key)
    assert page.inner_text(".audit .count") == "4 of 5 labelled"
    with page.expect_download() as saved:
        page.click(".audit .save")
    assert saved.value.suggested_filename == "judgements.tsv"
    file = tmp_path / "judgements.tsv"
    saved.value.save_as(file)
    found = read_judgements(file)
    labels = {query: label for (query, _), (label, _) in found.pairs.items()}
    page_labels = {IDS[0]: "relevant", IDS[1]: "negative", IDS[2]: "negative", IDS[3]: "unsure"}
    assert labels == {"old one": "negative", **page_labels}
    found.known(Vocabulary([*IDS, "old one"]), Vocabulary(["p", *(f"of {id_}" for id_ in IDS)]))
    page.reload()
    assert page.inner_text(".audit .count") in ("4 of 5 labelled", "0 of 5 labelled")  # a browser may not remember
    page.locator(".audit .pair").nth(4).get_by_role("button", name="positive").click()
    assert page.locator(".audit .pair").nth(4).get_attribute("data-label") == "positive"
    assert page.said == []


def test_labels_are_not_taken_for_another_collection_with_the_same_ids(page, tmp_path):
    page.focus(".audit .pair")
    page.keyboard.press("n")
    assert page.inner_text(".audit .count") == "1 of 5 labelled"
    file = tmp_path / "page.html"
    file.write_bytes(file.read_bytes().replace(b'<p class="query"><bdi>', b'<p class="query"><bdi>other '))
    page.reload()
    assert page.inner_text(".audit .count") == "0 of 5 labelled"


def test_no_text_does_harm_and_nothing_is_wider_than_the_page(page):
    assert page.evaluate("window.harmed") is None
    assert page.locator(".audit img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert "⟨U+202E⟩" in page.inner_text(".audit .pairs")
    assert page.said == []
