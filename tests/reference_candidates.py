"""Candidates of one ranked list once more, as a loop over its hits."""


def slow_candidates(collection, hits, positives, depth):
    """(row, rank, score) of the first ``depth`` hits [(row, score), ...]; no positive, and no copy of one."""
    texts = list(collection.texts)
    known = {texts[row] for row in positives}
    allowed = [(row, rank, score) for rank, (row, score) in enumerate(hits, 1) if texts[row] not in known]
    return allowed[:depth]
