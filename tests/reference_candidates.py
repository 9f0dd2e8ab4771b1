"""A slow reference for the candidates of one ranked list: a loop over its hits."""


def slow_candidates(collection, hits, positives, depth):
    """The first ``depth`` hits [(row, score), ...] that are no positive and no copy, as (row, rank, score)."""
    texts = list(collection.texts)
    known = {texts[row] for row in positives}
    allowed = [(row, rank, score) for rank, (row, score) in enumerate(hits, 1) if texts[row] not in known]
    return allowed[:depth]
