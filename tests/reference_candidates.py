"""A slow reference for the candidates of one ranked list: a loop over its hits."""


def slow_candidates(collection, hits, positives, depth):
    """The first ``depth`` hits [(row, score), ...] with texts that no positive and no better hit has.

    Each is told as (row, rank, score).
    """
    texts = list(collection.texts)
    known = {texts[row] for row in positives}
    allowed = []
    for rank, (row, score) in enumerate(hits, 1):
        if texts[row] not in known:
            allowed.append((row, rank, score))
            known.add(texts[row])
    return allowed[:depth]
