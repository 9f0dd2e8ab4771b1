"""Tables of the sampled vectors: a map of them, alignment and uniformity, drift, and scores above the corpus."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardneg.diagnostics.geometry import alignment, mean_cosine, norm_drift, uniformity
from hardneg.diagnostics.sampled_vectors import KIND, SampledVectors, load_sample
from hardneg.diagnostics.score_profile import corpus_means, score_profile
from hardneg.experiment.layout import geometry_of, sample_of
from hardneg.experiment.names import shown
from hardneg.report.facts_scores import LEVELS
from hardneg.report.lists import part_of
from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded, Table
from hardneg.storage.artifacts import is_published, load_array
from hardneg.surroundings import python_draws_kept

MAPPED_QUERIES, MAPPED_STATES = 40, 4
MAP_STEPS = 500  # of t-SNE
NEIGHBOURS = 15.0  # t-SNE's perplexity
SEED = 0
RANKS = (1, 2, 3, 5, 10, 20, 30, 50, 75, 100)


def samples(opened: Opened) -> dict[str, SampledVectors]:
    """The sampled vectors of each state, by name, in the order of training."""
    if "samples" not in opened.kept:
        there = [
            state
            for state in opened.trained_states
            if state.runs is not None and is_published(sample_of(opened.layout / state.runs), KIND)
        ]
        found = {state.name: _sample(opened, str(state.runs)) for state in there}
        opened.kept["samples"] = {name: one for name, one in found.items() if one is not None}
    kept: dict[str, SampledVectors] = opened.kept["samples"]
    if not kept:
        raise NotRecorded(
            "No vectors were kept: an earlier version trained it, or training queries were not searched."
        )
    return kept


def _sample(opened: Opened, runs: str) -> SampledVectors | None:
    found: SampledVectors | None = opened.told(lambda: load_sample(sample_of(opened.layout / runs)), None)
    return found


def space_table(opened: Opened) -> Table:
    """Alignment, uniformity, mean cosine, and how norms and directions drift, of the sampled vectors by state."""
    found = samples(opened)
    first = next(iter(found.values()))
    rows: list[dict[str, Any]] = []
    for name, one in found.items():
        drift = norm_drift(first.queries, one.queries).as_json()
        rows.append(
            {
                "state": shown(name),
                "alignment": alignment(one.queries, one.of(one.positives)),
                "uniformity": uniformity(one.passages) if len(one.passages) > 1 else None,
                "mean cosine of queries": mean_cosine(one.queries) if len(one.queries) > 1 else None,
                "norm of queries": drift["norm_after"],
                "norm against the first state": drift["ratio"],
                "cosine with the first state": drift["cosine"],
            }
        )
    return Table.of(rows)


def profile_table(opened: Opened) -> Table:
    """Quantiles over sampled queries of the scores of their first hits, each minus its query's corpus mean."""
    rows: list[dict[str, Any]] = []
    for name, one in samples(opened).items():
        state = opened.state(name)
        run = None if state is None else opened.run(state, "query")
        place = geometry_of(opened.layout / str(None if state is None else state.runs))
        if run is None or not is_published(place):
            continue
        part = part_of(run, one.query_rows)
        if len(part) != len(one.query_rows):
            continue
        means = corpus_means(one.queries.astype(np.float32), np.asarray(load_array(place / "mean.npy")))
        quantiles = score_profile(part, means, depth=RANKS[-1]).quantiles(LEVELS)
        for rank in RANKS:
            low, middle, high = quantiles[:, rank - 1].tolist()
            if np.isfinite(middle):
                rows.append({"state": shown(name), "rank": rank, "10 %": low, "median": middle, "90 %": high})
    if not rows:
        raise NotRecorded("Scores above the corpus mean need sampled vectors and runs of the training queries.")
    return Table.of(rows)


def map_table(opened: Opened) -> Table:
    """Maps (t-SNE) of sampled queries, positives and hardest negatives, one for each state."""
    found = samples(opened)
    names = list(found)
    if len(names) > MAPPED_STATES:
        at = np.linspace(0, len(names) - 1, MAPPED_STATES).round().astype(int)
        names = [names[i] for i in at]
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += _mapped(opened, shown(name), found[name])
    return Table.of(rows)


def _mapped(opened: Opened, state: str, one: SampledVectors) -> list[dict[str, Any]]:
    """The points of one state; raises where scikit-learn is missing or there are too few."""
    try:
        with python_draws_kept():
            from sklearn.manifold import TSNE
            from threadpoolctl import threadpool_limits
    except ImportError as missing:
        raise NotRecorded("The map needs scikit-learn: pip install 'hardneg[report]'.") from missing
    some = slice(0, MAPPED_QUERIES)
    negatives = one.negatives[some]
    owner = np.repeat(np.arange(len(negatives)), (negatives >= 0).sum(axis=1))
    hard = negatives[negatives >= 0]
    vectors = np.concatenate([one.queries[some], one.of(one.positives[some]), one.of(hard)]).astype(np.float32)
    if len(vectors) < 10:
        raise NotRecorded("Too few vectors were kept for a map.")
    count = len(negatives)
    classes = ["query"] * count + ["positive"] * count + ["negative"] * len(hard)
    queries = [*range(count), *range(count), *owner.tolist()]
    perplexity = min(NEIGHBOURS, (len(vectors) - 1) / 3)
    tsne = TSNE(metric="cosine", init="random", random_state=SEED, perplexity=perplexity, max_iter=MAP_STEPS)
    with threadpool_limits(1):  # so few points are slower on several threads, and their sums would differ
        points = tsne.fit_transform(vectors)
    ids = opened.data.collection.query_ids if opened.data is not None else None
    return [
        {
            "state": state,
            "class": kind,
            "query": str(one.query_rows[i]) if ids is None else ids[int(one.query_rows[i])],
            "x": round(float(x), 3),
            "y": round(float(y), 3),
        }
        for kind, i, (x, y) in zip(classes, queries, points, strict=True)
    ]
