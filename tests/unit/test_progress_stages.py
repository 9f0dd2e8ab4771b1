"""The stages of a training: the present one, those done before, and the time of all of them."""

import itertools

import pytest

from hardneg.process import progress, stages
from hardneg.process.progress import track
from hardneg.process.stages import Amount, Course, Planned, about, following

ENCODE = {"encode": Amount(100), "search": Amount(10)}
PLAN = [
    Planned("bm25"),
    Planned("measure", ENCODE),
    Planned("mine"),
    Planned("train", {"train": Amount(50, 4.0)}),
    Planned("measure", ENCODE),
    Planned("mine"),
    Planned("train", {"train": Amount(100, 8.0)}),
    Planned("measure", ENCODE),
    Planned("finish"),
]


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def watch(monkeypatch):
    watch = Clock()
    monkeypatch.setattr(progress, "time", watch)
    monkeypatch.setattr(stages, "time", watch)
    return watch


def work(watch, title, unit, kind, count, *, rate, start=0, total=None):
    """Do this many ticks at so many a second."""
    with track(title, unit, kind=kind) as tick:
        for done in range(start, start + count):
            watch.now += 1 / rate
            tick(done + 1, total or start + count)


def measure(watch, *, rate=8):
    stages.begin("measure")
    work(watch, "encoding passages", "tokens", "encode", 100, rate=rate)
    work(watch, "searching", "queries", "search", 10, rate=1)


def test_a_later_stage_of_the_kind_begins_and_what_is_before_it_is_done():
    course = Course(PLAN)
    assert course.place == ""
    for kind, place in (("bm25", 1), ("measure", 2), ("train", 4), ("measure", 5), ("train", 7)):
        course.begin(kind)
        assert course.place == f"[{place}/9] "
    course.begin("train")  # there is no other: it belongs to the present stage
    assert course.place == "[7/9] "


def test_the_last_stage_of_a_kind_comes_where_training_ended_early():
    course = Course(PLAN)
    course.begin("measure")
    course.begin("measure", last=True)
    assert course.place == "[8/9] "


def test_of_time_nothing_is_said_before_all_that_is_left_was_measured(watch):
    with following(PLAN):
        course = stages.course()
        stages.begin("bm25")
        assert course.left() is None
        measure(watch)
        assert course.left() is None  # no step was made
        stages.begin("mine")
        stages.begin("train")
        work(watch, "training", "steps", "train", 26, rate=2, total=50)
        # 24 steps of weight 4, 100 of 8, at 8 a second; two states of 100 tokens and 10 queries
        assert course.left() == pytest.approx((25 * 4 + 800) / 8 + 2 * (12.5 + 10), rel=0.1)


def test_the_time_that_is_left_follows_what_happens(watch):
    """A whole run: what is said in the middle is what comes."""
    said = []
    with following(PLAN):
        stages.begin("bm25")
        for steps in (50, 100):
            measure(watch)
            stages.begin("mine")
            stages.begin("train")
            work(watch, "training", "steps", "train", steps, rate=8 / (4 if steps == 50 else 8))
            said.append((watch.now, stages.course().left()))
        measure(watch)
        stages.begin("finish")
        end = watch.now
        assert stages.course().left() == 0
    assert stages.course() is None
    for when, left in said:
        assert when + left == pytest.approx(end, rel=0.03)


def test_what_was_encoded_before_is_not_left(watch):
    with following(PLAN[:2]):
        course = stages.course()
        measure(watch)
        course.at, course.done = 1, {}  # the same again, with its vectors there
        with track("searching", "queries", kind="search") as tick:
            for done in range(1, 6):
                watch.now += 1
                tick(done, 10)
            assert course.left() == pytest.approx(6, rel=0.1)  # as the rate counts from the first report


def test_a_training_that_goes_on_has_the_rest_alone(watch):
    with following([Planned("train", {"train": Amount(100)})]):
        stages.begin("train")
        with track("training", "steps", kind="train") as tick:
            for done in range(81, 91):
                watch.now += 1
                tick(done, 100)
            assert stages.course().left() == pytest.approx(10)


def test_lines_name_the_stage_and_the_time_of_all(watch, capsys, monkeypatch):
    monkeypatch.setattr(progress, "enabled", True)
    with following(PLAN):
        stages.begin("bm25")
        measure(watch)
        stages.begin("mine")
        stages.begin("train")
        work(watch, "training, episode 1", "steps", "train", 50, rate=2)
        measure(watch)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[2/9] encoding passages: 40/100 tokens, 40 %, 8.0/s, 8s more"
    assert "[4/9] training, episode 1: 30/50 steps, 60 %, 2.0/s, about 3 min of 3 left" in lines
    assert any(line.startswith("[5/9] searching: ") and line.endswith(" left") for line in lines)


def test_without_a_plan_lines_are_as_they_were(watch, capsys, monkeypatch):
    monkeypatch.setattr(progress, "enabled", True)
    with following([]):
        stages.begin("measure")
        work(watch, "encoding passages", "tokens", "encode", 100, rate=8)
    assert capsys.readouterr().err.startswith("encoding passages: 40/100 tokens, 8.0/s, 8s left\n")


@pytest.mark.parametrize(
    ("left", "whole", "text"),
    [
        (31, 100, "about 31 s of 100 left"),
        (360, 1080, "about 6 min of 18 left"),
        (20, 1080, "about 1 min of 18 left"),
        (5400, 9000, "about 1.5 h of 2.5 left"),
    ],
)
def test_times_are_said_in_the_unit_of_the_whole(left, whole, text):
    assert about(left, whole) == text


def test_a_caller_shows_or_hides_progress(capsys, monkeypatch):
    monkeypatch.setattr(progress, "enabled", False)
    with progress.showing(True):
        progress.note("shown")
    with progress.showing(None):
        progress.note("hidden")
    monkeypatch.setattr(progress, "enabled", True)
    with progress.showing(False):
        progress.note("hidden")
    monkeypatch.setattr(progress, "muted", True)
    with progress.showing(True):
        progress.note("hidden")
    assert capsys.readouterr().err == "shown\n"


def test_a_notebook_has_a_bar_in_its_cell(watch, monkeypatch):
    shown, handles = [], itertools.count()

    class Handle:
        def update(self, what):
            shown.append(what)

    def display(what, display_id):
        shown.append((next(handles), what))
        return Handle()

    class IPython:
        class display:  # noqa: N801
            HTML = staticmethod(str)

    IPython.display.display = staticmethod(display)
    monkeypatch.setitem(progress.sys.modules, "IPython", IPython)
    monkeypatch.setitem(progress.sys.modules, "IPython.display", IPython.display)
    monkeypatch.setitem(progress.sys.modules, "ipykernel.kernelapp", object())
    work(watch, "encoding <x>", "tokens", "encode", 3, rate=1)
    assert shown == [
        (0, '<div>encoding &lt;x&gt; <progress value="1" max="3"></progress> 1/3 tokens</div>'),
        '<div>encoding &lt;x&gt; <progress value="2" max="3"></progress> 2/3 tokens, 1.0/s, 1s left</div>',
        '<div>encoding &lt;x&gt; <progress value="3" max="3"></progress> 3/3 tokens, 1.0/s</div>',
        "",
    ]
    with progress.showing(False):
        work(watch, "encoding", "tokens", "encode", 3, rate=1)
    assert len(shown) == 4
