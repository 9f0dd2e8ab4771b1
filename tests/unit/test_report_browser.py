"""The report in a real browser: charts drawn, no error, the explorer by keyboard, and no text does harm."""

import shutil

import pytest

import hardneg as hn
from worlds.tiny_world import SETTINGS

pytest.importorskip("altair", reason="the report's packages are not installed")
pytest.importorskip("vl_convert", reason="the report's packages are not installed")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright drives the browser, and is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium here (Debian: apt install chromium)"
)

PATIENCE = 180_000  # milliseconds; machines may be busy
SCRIPT = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
BIDI = "first \u202e second \u2066 third"
HUGE = "word" * 250_000


@pytest.fixture(scope="module")
def place(world, tmp_path_factory):
    """The page of an experiment, in which some texts are hostile."""
    out = tmp_path_factory.mktemp("browser") / "exp"
    settings = SETTINGS | {"store_dtype": "float32", "episodes": 4}
    hn.train_ance_tele(world.collection, world.model, out, device="cpu", measure_every=2, **settings)
    report = hn.diagnose(out, pictures=False, save=False)
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

    def open_page(width, scheme="light"):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.said = []
        page.on("console", lambda message: page.said.append((message.type, message.text)))
        page.on("pageerror", lambda fault: page.said.append(("error", str(fault))))
        page.goto(f"file://{place}", timeout=PATIENCE)
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


def test_every_table_is_reached_by_the_keyboard(opened):
    page = opened(1280)
    assert page.locator("table").count() > 10
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead)")
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(b => b.tabIndex === 0 && b.getAttribute('aria-label'))"
    )


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
