"""The report in a real browser: charts drawn, no error, the explorer by keyboard, and no text does harm."""

import json
import shutil

import numpy as np
import pytest

import hardneg as hn
from hardneg.data.judgements import read_judgements
from hardneg.experiment.layout import Layout
from hardneg.negatives.pool import load_pool
from hardneg.records import spans
from worlds.tiny_world import SETTINGS

pytest.importorskip("altair", reason="the report's packages are not installed")
pytest.importorskip("vl_convert", reason="the report's packages are not installed")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright drives the browser, and is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian: apt install chromium)"),
]

PATIENCE = 180_000  # milliseconds; machines may be busy
SCRIPT = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
BIDI = "first \u202e second \u2066 third"
HUGE = "word" * 250_000
TRAINED = SETTINGS | {"store_dtype": "float32", "episodes": 4}
FEW = {"episodes": 1, "steps": 4, "passages_reference": [4]}


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A trained experiment with its report."""
    out = tmp_path_factory.mktemp("browser") / "exp"
    hn.train_ance_tele(world.collection, world.model, out, device="cpu", measure_every=2, **TRAINED)
    hn.diagnose(out, pictures=False)
    return out


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory):
    """The page of an experiment, in which some texts are hostile."""
    report = hn.diagnose(trained, pictures=False, save=False)
    data = report.explorer
    data["queries"][0].update(id="hostile", text=f"{SCRIPT} {BIDI}")
    data["queries"][1].update(id="huge", text=HUGE)
    for passage in data["passages"][:3]:
        passage[1:] = [SCRIPT, BIDI]
    page = tmp_path_factory.mktemp("page") / "report.html"
    page.write_bytes(report.html)
    return page


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, place, request):
    """A function that opens the page, without a network, and keeps what its console says."""
    contexts = []

    def open_page(width, scheme="light", file=place):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.said = []
        page.on("console", lambda message: page.said.append((message.type, message.text)))
        page.on("pageerror", lambda fault: page.said.append(("error", str(fault))))
        page.goto(f"file://{file}", timeout=PATIENCE)
        page.wait_for_selector("html.charts-drawn.explorer-ready", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_every_chart_is_drawn_without_a_word_on_the_console(opened, width, scheme):
    page = opened(width, scheme)
    assert page.said == []
    charts = page.locator("[data-chart]")
    assert charts.count() > 10
    assert page.locator("[data-chart].drawn svg").count() == charts.count()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.scrollY") == 0
    assert page.locator("section.verdict p.sentence").inner_text()


def test_a_notebook_displays_the_report(browser, trained, tmp_path):
    """As notebooks do: what ``_repr_html_`` gives stands in a page of theirs."""
    report = hn.diagnose(trained, save=False)
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{report._repr_html_()}</body>")
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.set_default_timeout(PATIENCE)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"file://{tmp_path / 'notebook.html'}", timeout=PATIENCE)
    frame = page.frame_locator("iframe")
    frame.locator("html.charts-drawn.explorer-ready").wait_for(state="attached")
    assert frame.locator("[data-chart].drawn svg").count() == len(report.charts)
    assert frame.locator("section.verdict p.sentence").inner_text() == report.verdict.sentence
    assert said == []
    page.close()


def test_the_explorer_is_searched_by_keyboard(opened):
    page = opened(1280)
    page.focus("#explorer-find")
    page.keyboard.type("train-0")
    items = page.locator("#explorer-list li")
    ids = items.locator("small").all_inner_texts()
    assert ids
    assert all("train-0" in one for one in ids)
    head = page.locator("#explorer-shown h4")
    before = head.inner_text()
    page.keyboard.press("ArrowDown")  # into the list
    page.keyboard.press("ArrowDown")
    assert head.inner_text() != before
    assert items.nth(1).get_attribute("aria-selected") == "true"
    rows = page.locator("#explorer-shown tbody tr")
    assert rows.count() >= 2
    assert "positive" in rows.first.inner_text()
    page.select_option("#explorer-kind", "forgotten")
    assert all("forgotten" in one for one in items.locator("small").all_inner_texts())
    page.fill("#explorer-find", "no such word")
    assert page.locator("#explorer-count").inner_text().startswith("0 of")
    assert page.said == []


@pytest.mark.parametrize("width", [1280, 400])
def test_no_column_is_so_narrow_that_words_fall_apart(opened, width):
    page = opened(width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.fill("#explorer-find", "train-0")  # of training, whose negatives have long names of sources
    lines = page.evaluate(
        """() => [...document.querySelectorAll("#explorer-shown tbody tr td:first-child bdi")].map(
        (one) => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight))"""
    )
    assert lines
    assert max(lines) < 1.5
    lines = page.evaluate(
        """() => [...document.querySelectorAll("main td bdi")].map((one) => [
        Math.max(...one.textContent.split(/\\s/).map((word) => word.length)),
        one.getBoundingClientRect().width / parseFloat(getComputedStyle(one).fontSize)])"""
    )
    widths = [width for longest, width in lines if longest >= 10 and width > 0]
    assert widths
    assert min(widths) > 4  # a line has room for a word of ten letters


def test_charts_are_not_made_smaller_on_a_narrow_page(opened):
    page = opened(400)
    scales = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("[data-chart] svg")].map((one) => [
        one.closest("[data-chart]").dataset.chart,
        one.getBoundingClientRect().width / one.viewBox.baseVal.width]))"""
    )
    assert "map" in scales
    assert {name: scale for name, scale in scales.items() if scale < 0.9} == {}


def test_every_table_is_reached_by_the_keyboard(opened):
    page = opened(1280)
    assert page.locator("table").count() > 10
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead)")
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(b => b.tabIndex === 0 && b.getAttribute('aria-label'))"
    )


def test_tables_print_whole(opened):
    page = opened(794)  # A4
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    boxes = page.evaluate(
        """() => [...document.querySelectorAll(".scroll")].filter((box) => box.offsetParent).map((box) =>
        [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight])"""
    )
    assert len(boxes) > 10
    assert max(map(max, boxes)) <= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 794


def test_hostile_texts_do_no_harm(opened):
    page = opened(1280)
    page.fill("#explorer-find", "hostile")
    shown = page.locator("#explorer-shown")
    assert "<script>window.harmed" in shown.inner_text()
    assert "⟨U+202E⟩" in shown.inner_text()
    page.fill("#explorer-find", "huge")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.evaluate("window.harmed") is None
    assert page.said == []


def labelled(page, file):
    """Label the first pairs of the report by keyboard alone, and save the labels: the pairs in their order."""
    page.focus("details.label > summary")
    page.keyboard.press("Enter")  # open the list
    pairs = page.locator(".audit .pair")
    named = [
        (pairs.nth(i).get_attribute("data-query"), pairs.nth(i).get_attribute("data-passage")) for i in (0, 1)
    ]
    page.focus(".audit .pair")
    page.keyboard.press("r")
    page.keyboard.press("p")
    assert page.inner_text(".audit .count") == f"2 of {pairs.count()} labelled"
    page.focus(".audit .save")
    with page.expect_download() as saved:
        page.keyboard.press("Enter")
    assert saved.value.suggested_filename == "judgements.tsv"
    saved.value.save_as(file)
    return named


@pytest.mark.parametrize("width", [1280, 400])
def test_labels_of_the_report_are_obeyed_by_train_mine_and_evaluate(
    opened, hardneg, trained, world, tmp_path, width
):
    page, file = opened(width, file=trained / "report.html"), tmp_path / "judgements.tsv"
    named = labelled(page, file)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.said == []
    assert {pair: label for pair, (label, _) in read_judgements(file).pairs.items()} == {
        named[0]: "relevant",
        named[1]: "positive",
    }
    data, model = world.collection, world.model
    given = ["--data", data.path, "--model", model, "--device", "cpu", "--judgements", file]

    def run(*arguments):
        """Run a command; what it writes."""
        status, out, err = hardneg(*arguments)
        assert status == 0, err
        return out

    def negatives(place):
        """Every pair of a query and a negative of a pool, by ids."""
        pool = load_pool(place)
        of_query = data.query_ids.take(np.repeat(pool.query_rows, spans(pool.offsets)))
        return set(zip(of_query, data.passage_ids.take(pool.passage_rows), strict=True))

    assert set(named) <= negatives(Layout(trained).episode(TRAINED["episodes"]).negatives)
    run("mine", *given, "--sources", "query,random", "--depth", "50", "--count", "50", "--out", tmp_path / "pool")
    assert len(negatives(tmp_path / "pool")) > 1000
    assert not negatives(tmp_path / "pool") & set(named)
    sets = [part for name, value in (TRAINED | FEW).items() for part in ("--set", f"{name}={value}")]
    run("train", "ance-tele", *given, *sets, "--out", tmp_path / "exp")
    pools = list(Layout(tmp_path / "exp").pools())
    assert pools
    assert not any(negatives(pool) & set(named) for pool in pools)
    lists = tmp_path / "run.trec"
    lists.write_text("".join(f"{query} Q0 {passage} 1 1.0 x\n" for query, passage in dict(named).items()))
    known = ["evaluate", lists, "--data", data.path, "--split", "train", "--measures", "RR@10", "--json"]
    before, after = (json.loads(run(*known, *more)) for more in ((), ("--judgements", file)))
    assert before["measures"]["RR@10"] == 0
    assert after["measures"]["RR@10"] * after["queries"] == pytest.approx(len(dict(named)))
