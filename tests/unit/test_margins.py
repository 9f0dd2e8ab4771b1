"""Margins: each negative of a step on the disk, cut back to a checkpoint, and averaged by pair."""

import numpy as np
import pytest
import torch

from hardneg.errors import ArtifactError
from hardneg.experiment.margins import NONE, MarginLog, Margins, mean_margins, read_margins, report_queries
from hardneg.training.objectives import margins


def rows(*values):
    return np.array(values, np.int32)


def log_of(path, queries=(7, 8)):
    return MarginLog(path / "margins.tsv", rows(*queries))


def seen(log, *places):
    """A log that has seen a step at each of these places of (episode, step)."""
    for place in places:
        log.at = place
        log.see(rows(7, 9, 8), rows([1, 2], [3, 4], [5, 6]), torch.tensor([[0.5, -1.25], [9, 9], [torch.nan, 2]]))
    log.flush()
    return log


LINES = ["{}\t{}\t7\t1\t0.5000\n", "{}\t{}\t7\t2\t-1.2500\n", "{}\t{}\t8\t6\t2.0000\n"]


def lines_of(*places):
    return "".join(line.format(*place) for place in places for line in LINES)


def test_margins_of_the_chosen_queries_are_written_and_masked_ones_are_not(tmp_path):
    log = seen(log_of(tmp_path), (1, 1), (1, 2))
    assert log.path.read_text() == lines_of((1, 1), (1, 2))
    found = read_margins(log.path)
    assert found.query_rows.tolist() == [7, 7, 8] * 2
    assert found.passage_rows.tolist() == [1, 2, 6] * 2
    assert found.margins.tolist() == [0.5, -1.25, 2] * 2


def test_nothing_is_written_where_no_query_is_chosen(tmp_path):
    assert not seen(log_of(tmp_path, queries=()), (1, 1)).path.exists()
    assert read_margins(tmp_path / "margins.tsv") is NONE


PLACES = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 10)]


@pytest.mark.parametrize(
    ("episode", "step", "kept"), [(1, 0, 0), (1, 1, 1), (1, 9, 2), (2, 0, 2), (2, 2, 4), (2, 9, 4), (3, 0, 5)]
)
@pytest.mark.parametrize("torn", ["", "2\t10\t7", "2", "x"])
def test_margins_are_cut_back_to_a_checkpoint(tmp_path, episode, step, kept, torn):
    log = seen(log_of(tmp_path), *PLACES)
    log.path.write_text(log.path.read_text() + torn)
    again = log_of(tmp_path)
    again.truncate(episode, step)
    assert again.path.read_text() == lines_of(*PLACES[:kept])


def test_a_file_that_is_not_what_the_checkpoint_knew_is_refused(tmp_path):
    log = seen(log_of(tmp_path), (1, 1))
    known = log.digest()
    seen(log, (1, 2))
    log.truncate(1, 1, sha256=known)
    log.path.write_text(log.path.read_text().replace("0.5", "0.6"))
    before = log.path.read_bytes()
    with pytest.raises(ArtifactError, match=r"CORRUPT.*step 1 in episode 1"):
        log.truncate(1, 1, sha256=known)
    assert log.path.read_bytes() == before


def test_an_empty_log_has_the_digest_of_no_file(tmp_path):
    log = log_of(tmp_path)
    known = log.digest()
    seen(log, (1, 1)).truncate(1, 0, sha256=known)
    assert log.path.read_bytes() == b""
    assert log.digest() == known
    assert len(read_margins(log.path).margins) == 0


@pytest.mark.parametrize("damage", ["1\t2\n", "a\tb\tc\td\te\n", "1\t1\t7\t1\t0.5\n1\t2\n"])
def test_damaged_margins_are_refused(tmp_path, damage):
    (tmp_path / "margins.tsv").write_text(damage)
    with pytest.raises(ArtifactError, match=r"margins\.tsv: CORRUPT"):
        read_margins(tmp_path / "margins.tsv")


def test_means_equal_a_loop():
    rng = np.random.default_rng(0)
    drawn = Margins(
        rng.integers(0, 40, 3000).astype(np.int32),
        rng.integers(0, 90, 3000).astype(np.int32),
        rng.normal(size=3000).astype(np.float32),
    )
    asked = rng.integers(0, 50, 500).astype(np.int32), rng.integers(0, 100, 500).astype(np.int32)
    every = {}
    for query, passage, margin in zip(*(part.tolist() for part in drawn), strict=True):
        every.setdefault((query, passage), []).append(margin)
    wanted = [np.mean(every.get(pair, [np.nan])) for pair in zip(*(part.tolist() for part in asked), strict=True)]
    np.testing.assert_allclose(mean_margins(drawn, *asked), wanted, rtol=1e-5, atol=1e-6)
    assert np.isnan(mean_margins(NONE, *asked)).all()


def test_the_same_queries_are_chosen_whatever_their_order():
    queries = np.random.default_rng(1).permutation(1000)[:300].astype(np.int32)
    some = report_queries(queries, 40)
    assert len(some) == 40
    assert (np.sort(some) == some).all()
    assert report_queries(queries[::-1], 40).tolist() == some.tolist()
    assert set(report_queries(queries, 41)) > set(some)
    assert report_queries(queries, 1000).tolist() == np.sort(queries).tolist()


def test_margins_by_hand():
    scores = torch.tensor([[3.0, 1.0, 4.0, 0.0, 9.0, 9.0], [7.0, 7.0, 7.0, 2.0, 2.5, -1.0]])
    masked = torch.zeros(2, 6, dtype=torch.bool)
    masked[1, 4] = True
    found = margins(scores, torch.tensor([0, 3]), masked, 10.0)
    assert found.shape == (2, 2)
    assert found[0].tolist() == [20.0, -10.0]
    assert torch.isnan(found[1, 0])
    assert found[1, 1] == 30.0
