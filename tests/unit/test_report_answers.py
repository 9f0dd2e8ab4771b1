"""The report of open-domain questions: what counts as relevant where nobody judged."""

from types import SimpleNamespace

import pytest

from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits, labelled
from hardneg.report.facts_errors import training_errors_table
from hardneg.report.measured import training_ranks
from worlds.tiny_records import run_of


def test_errors_of_training_queries_count_relevant_hits_at_any_depth(tmp_path):
    """Two irrelevant hits are followed by those that contain an answer; a judged passage is the last one."""
    n = 150
    passages = {f"w{i}": f"nothing {i}" for i in range(2)} | {
        f"p{i}": f"passage {i} has gold" for i in range(n - 2)
    }
    to = tmp_path / "c"
    c = Collection.from_lists(passages, {"q": "what"}, {"train": {"q": ["p147"]}}, answers={"q": ["gold"]}, to=to)
    data = labelled(choose_splits(c, dev="none"), {"labels": "answers"})
    opened = SimpleNamespace(
        kept={},
        settings={},
        data_here=data,
        cache=tmp_path / "cache",
        trained_states=[SimpleNamespace(name="untrained")],
        run=lambda state, name: run_of([list(range(n))]),
    )
    (row,) = training_errors_table(opened).records()
    assert row[f"first {n}"] == 2 * (n - 2)  # each of the relevant hits has both of the others above it
    assert training_ranks(opened)[1]["untrained"].tolist() == pytest.approx([1 / 3])
