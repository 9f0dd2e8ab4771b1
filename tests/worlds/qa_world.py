"""A tiny collection of open-domain questions, with answers that passages contain."""

import numpy as np

from hardneg.data.collection import Collection

PASSAGES, TRAIN = 96, 30


def qa_collection(folder):
    """Passages of eight words about eight topics; the answer of a question is two words of a passage in a row.

    A question consists of three words of that passage. Every third question has no judged passage. Of the other
    questions, every third has two judged passages, the first with the higher row. Two questions have answers that
    no passage contains; one of these two is judged.
    """
    draw = np.random.default_rng(5)
    words = [f"{a}{b}" for a in ("ba", "de", "fi", "go", "ku", "la", "me", "ni") for b in "abcdefgh"]
    texts = [[words[p % 8 * 8 + w] for w in draw.integers(0, 8, 8)] for p in range(PASSAGES)]
    passages = [(f"p{i:02d}", "title" if i % 5 == 0 else "", " ".join(text)) for i, text in enumerate(texts)]
    queries, answers, qrels = {}, {}, {}
    for split, count in (("train", TRAIN), ("dev", 8), ("test", 10)):
        for i, p in enumerate(draw.permutation(PASSAGES)[:count].tolist()):
            name = f"{split}-{i:02d}"
            queries[name] = " ".join(draw.permutation(texts[p])[:3])
            answers[name] = [" ".join(texts[p][2:4]).upper(), "\u200b"]
            judged = [f"p{p:02d}"] if i % 3 else []
            if i % 3 == 1:
                judged = sorted([*judged, f"p{(p + 8) % PASSAGES:02d}"], reverse=True)
            qrels.setdefault(split, {})[name] = judged
    answers["train-00"] = answers["train-01"] = ["nowhere at all"]
    return Collection.from_lists(passages, queries, qrels, answers=answers, to=folder)
