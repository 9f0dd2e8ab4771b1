"""What fusing with BM25 gives: the runs of a state and of BM25 made one run, and measured as the states are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.summary import Seen, compare_states
from hardneg.evaluation.measures import Evaluation
from hardneg.experiment.names import BM25, FINAL, UNTRAINED, with_bm25
from hardneg.search.fusion import Fusion, fuse
from hardneg.search.rerank import in_file_order


def fused_results(seen: Seen, judge: Judge, *, seed: int) -> dict[str, Any]:
    """The entry ``fused`` of ``results.json``; {} where no split can be fused.

    The untrained and the final model are fused with BM25 by reciprocal ranks, which has nothing to tune. A split
    that was judged among BM25's first passages is left out, because BM25 chose what the model ranked.

    Returns
    -------
    ``method`` and ``rank_constant``; the measures by split and state, with the names of
    :func:`~hardneg.experiment.names.with_bm25`; and ``comparisons``: by the first measure on the first split,
    tests of the final model fused with BM25 against that model alone, and against the untrained model fused.

    Parameters
    ----------
    seen : with figures; all states of a retriever, and BM25.
    seed : of the draws of the tests.
    """
    splits = [name for name in judge.data.judged if name not in judge.judged_among]
    states = [name for name in (UNTRAINED, FINAL) if name in seen]
    found: dict[str, Any] = {}
    for split in splits:
        fused = {
            with_bm25(name): fused_run(seen, name, split, judge) for name in states if split in seen[name].runs
        }
        if with_bm25(FINAL) not in fused:
            continue
        found[split] = {name: evaluation.means for name, evaluation in fused.items()}
        if "comparisons" not in found:
            found["comparisons"] = compared(fused | {FINAL: seen[FINAL].evaluations[split]}, judge, seed)
    usual = Fusion()
    return {"fused": {"method": usual.method, "rank_constant": usual.rank_constant, **found}} if found else {}


def fused_run(seen: Seen, state: str, split: str, judge: Judge) -> Evaluation:
    """The evaluation of a state's run of a split, fused with BM25's: equal scores rank as in the runs' files."""
    id_rank = judge.data.collection.passage_ids.id_rank
    dense = seen[state].runs[split]
    runs = [in_file_order(run, id_rank) for run in (seen[BM25].runs[split], dense)]
    run = fuse(runs, k=judge.depth_of(split), id_rank=id_rank)
    return judge.evaluate({split: run})[split]


def compared(evaluations: dict[str, Evaluation], judge: Judge, seed: int) -> list[dict[str, Any]]:
    """Tests, by the first measure, of the fused final model: against it alone, and the untrained model fused."""
    first = str(judge.measures[0])
    by_first = {name: replace(one, values={first: one.values[first]}) for name, one in evaluations.items()}
    others = [name for name in (with_bm25(UNTRAINED), FINAL) if name in by_first]
    return compare_states(by_first, [(with_bm25(FINAL), other) for other in others], seed=seed)
