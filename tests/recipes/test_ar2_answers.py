"""AR2 on open-domain questions: the entropy if answers decide which passages are positives."""

from types import SimpleNamespace

import numpy as np
import pytest
from executed import run_of_state

import hardneg as hn
from hardneg.evaluation.matching import contains
from hardneg.experiment.states import read_states
from reference_adversarial import slow_entropy
from worlds.qa_world import qa_collection
from worlds.tiny_world import COMMON, one_thread, tiny_model  # noqa: F401

SETTINGS = COMMON | {
    "iterations": 1,
    "retriever_steps": 2,
    "ranker_steps": 1,
    "first_ranker_steps": 1,
    "negatives_per_query": 2,
    "ranker_queries_per_step": 4,
    "first_ranker_queries_per_step": 4,
    "rerank_depth": 0,
    "labels": "answers",
    "warmup": 1,
    "measures": "Answer@5 R@100",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A collection with answers, and what AR2 made of it."""
    root = tmp_path_factory.mktemp("qa")
    collection = qa_collection(root / "collection")
    model = tiny_model(root / "model", collection, dropout=0.0)
    results = hn.train_ar2(collection, model, root / "exp", device="cpu", **SETTINGS)
    return SimpleNamespace(collection=collection, path=root / "exp", results=results)


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("state", ["untrained", "final"])
def test_the_entropy_takes_answers_for_positives(done, split, state):
    collection = done.collection
    record = {one.name: one for one in read_states(done.path)}[state]
    run, positives = run_of_state(done.path, record, split), collection.qrels(split).positives()
    found, without_gold = [], 0
    for i, query in enumerate(run.query_rows.tolist()):
        part = slice(run.offsets[i], run.offsets[i + 1])
        hits = [*zip(run.passage_rows[part].tolist(), run.scores[part].tolist(), strict=True)]
        answered = {row for row, _ in hits if contains(collection.texts[row], collection.answers(query))}
        judged = set(positives.of(i).tolist())
        scores = [score for row, score in hits if row in (judged or answered)]
        if not scores:
            continue
        without_gold += not judged
        others = [score for row, score in hits if row not in judged | answered]
        found.append(slow_entropy([max(scores), *others[:15]]))
    assert without_gold > 0
    assert done.results["entropy"][split][state] == pytest.approx(np.mean(found), abs=1e-4)
