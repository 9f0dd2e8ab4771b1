"""Charts drawn by a second process: the same pictures, and none missing whatever happens to it."""

import dataclasses
import threading
import time

import pytest

pytest.importorskip("vl_convert")

from hardneg.report import pictures
from hardneg.report.drawing import Drawn
from hardneg.report.figures import FIGURES
from hardneg.report.pictures import Painter, draw
from hardneg.report.shapes import altair as opened_altair
from hardneg.report.table import Table


def chart(number):
    """A chart of a bar or two."""
    values = [{"a": i, "b": i * number} for i in range(2)]
    encoding = {"x": {"field": "a", "type": "ordinal"}, "y": {"field": "b", "type": "quantitative"}}
    return {"data": {"values": values}, "mark": "bar", "encoding": encoding}


@pytest.fixture
def expected(tmp_path):
    """The pictures as this process draws them, by name."""
    place = tmp_path / "here"
    for number in range(3):
        draw(place / f"c{number}", chart(number))
    return {one.name: one.read_bytes() for one in place.iterdir()}


def drawn(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir()} if folder.exists() else {}


@pytest.mark.parametrize("threads", [1, 2])
def test_both_processes_draw_the_same(tmp_path, expected, monkeypatch, threads):
    monkeypatch.setattr(pictures, "usable_threads", lambda: threads)
    with Painter() as painter:
        for number in range(3):
            painter.add(tmp_path / "out" / f"c{number}", chart(number))
        assert (painter.process is None) == (threads == 1)
        painter.finish()
    assert len(expected) == 6
    assert drawn(tmp_path / "out") == expected


def test_the_second_process_draws_all(tmp_path, expected, monkeypatch):
    monkeypatch.setattr(pictures, "usable_threads", lambda: 2)
    monkeypatch.setattr(pictures, "draw", None)
    with Painter() as painter:
        for number in range(3):
            painter.add(tmp_path / f"c{number}", chart(number))
        painter.finish()
    assert {name: (tmp_path / name).read_bytes() for name in expected} == expected


@pytest.mark.parametrize("when", ["before", "between", "at the end"])
def test_a_second_process_that_is_killed_is_not_missed(tmp_path, expected, monkeypatch, when):
    monkeypatch.setattr(pictures, "usable_threads", lambda: 2)
    with Painter() as painter:
        painter.add(tmp_path / "out" / "c0", chart(0))
        if when == "before":
            painter.process.kill()
            painter.process.wait()
        painter.add(tmp_path / "out" / "c1", chart(1))
        if when == "between":
            painter.process.kill()
        painter.add(tmp_path / "out" / "c2", chart(2))
        if when == "at the end":
            painter.process.kill()
        painter.finish()
    assert drawn(tmp_path / "out") == expected


def test_a_place_that_cannot_be_written_fails_as_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "usable_threads", lambda: 2)
    (tmp_path / "file").write_text("in the way")
    with Painter() as painter:
        painter.add(tmp_path / "file" / "c0", chart(0))
        with pytest.raises(Exception, match="file"):
            painter.finish()


def test_a_fault_in_the_block_ends_the_second_process(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "usable_threads", lambda: 2)
    begun = time.monotonic()

    def fail(painter):
        with painter:
            for number in range(200):
                painter.add(tmp_path / f"c{number}", chart(number))
            raise RuntimeError

    painter = Painter()
    with pytest.raises(RuntimeError):
        fail(painter)
    assert painter.process.returncode < 0
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("threads", [1, 2])
def test_a_chart_that_cannot_be_drawn_is_told_and_costs_no_other(tmp_path, expected, monkeypatch, threads):
    monkeypatch.setattr(pictures, "usable_threads", lambda: threads)
    with Painter() as painter:
        for number in range(3):
            painter.add(tmp_path / "out" / f"c{number}", chart(number))
        painter.add(tmp_path / "out" / "none", {"mark": 3})
        undrawn = painter.finish()
    assert [*undrawn] == ["none"]
    assert {name: data for name, data in drawn(tmp_path / "out").items() if "none" not in name} == expected


def map_of(query):
    """The figure of a map with three points of this query."""
    rows = [("final", kind, query, i, i) for i, kind in enumerate(("query", "positive", "negative"))]
    figure = next(one for one in FIGURES if one.name == "map")
    return Drawn(figure, Table(("state", "class", "query", "x", "y"), tuple(rows)))


@pytest.mark.parametrize("transformer", ["vegafusion", "json"])
def test_charts_are_the_same_whatever_the_caller_has_set_in_altair(transformer):
    altair = opened_altair()
    usual = map_of("q").spec
    assert usual["data"]["values"]
    before = altair.data_transformers.active, altair.theme.active
    with altair.data_transformers.enable(transformer), altair.theme.enable("dark"):
        assert map_of("q").spec == usual
        assert (altair.data_transformers.active, altair.theme.active) == (transformer, "dark")
    assert (altair.data_transformers.active, altair.theme.active) == before


def test_a_chart_is_drawn_while_another_thread_draws_by_what_it_has_set_in_altair():
    altair, usual, seen = opened_altair(), map_of("q"), []
    meeting = threading.Barrier(2)

    def met(table):
        meeting.wait(60)  # both are here
        meeting.wait(60)  # the other thread has looked
        return usual.figure.chart(table)

    def look():
        meeting.wait(60)
        seen.append((altair.data_transformers.active, altair.theme.active))
        meeting.wait(60)
        seen.append(bool(usual.spec))

    with altair.data_transformers.enable("json"), altair.theme.enable("dark"):
        other = threading.Thread(target=look)
        other.start()
        assert Drawn(dataclasses.replace(usual.figure, chart=met), usual.table).spec == map_of("q").spec
        other.join()
        assert (altair.data_transformers.active, altair.theme.active) == ("json", "dark")
    assert seen == [("json", "dark"), True]
    assert altair.utils.schemapi.DEBUG_MODE


@pytest.mark.parametrize("mark", ["\x1b", "\x07", "\ufffe", "\uffff", "\udce9"])
def test_hidden_characters_of_ids_do_not_stop_the_drawing(tmp_path, mark):
    shown = map_of(f"q{mark}[31m")
    draw(tmp_path / "map", shown.spec)
    assert {one.suffix for one in tmp_path.iterdir()} == {".png", ".svg"}
    assert f"q⟨U+{ord(mark):04X}⟩[31m" in {row["query"] for row in shown.spec["data"]["values"]}
    assert shown.table.column("query")[0] == f"q{mark}[31m"  # in the CSV it is as it was
