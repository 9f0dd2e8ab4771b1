"""A tiny world for recipes: a generated collection and settings that train on it in about a second."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from hardneg.data.collection import Collection
from worlds.tiny_models import SHAPE, _save

SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
TOPICS, WORDS, PASSAGES = 12, 12, 120
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "xu", "zy")

# Three episodes of 4, 4 and 12 steps over two epochs of 8; pools mix 6 query, 6 lookahead, 12 momentum negatives.
SETTINGS = {
    "episodes": 3,
    "queries_per_step": 8,
    "passages_reference": [4, 5, 6],
    "steps": 12,
    "stop_fraction": 0.3,
    "learning_rate": 1e-3,
    "depth": 20,
    "count": 6,
    "seed": 7,
    "precision": "float32",
    "token_budget": 512,
    "checkpoint_every": 5,
    "measures": "RR@10 R@100",
}

# The settings that any recipe can use.
COMMON = {
    name: SETTINGS[name]
    for name in ("queries_per_step", "learning_rate", "depth", "seed", "precision", "token_budget")
} | {"store_dtype": "float32", "checkpoint_every": 2}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread, the fastest for such small models, in every test of a module that imports this."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class World(NamedTuple):
    """A collection and a model's folder."""

    collection: Collection
    model: str

    @property
    def root(self) -> Path:
        return Path(self.model).parent


def tiny_world(root: Path, *, dropout: float = 0.1) -> World:
    """A tiny collection and a tiny model that knows its words, below ``root``."""
    collection = tiny_collection(root / "collection")
    return World(collection, tiny_model(root / "model", collection, dropout=dropout))


def tiny_collection(folder: Path) -> Collection:
    """120 passages about 12 topics, some with titles, some of equal text; 60 training, 16 dev and 16 test queries.

    A query consists of three words of its first positive; every third query has a second positive.
    """
    draw = np.random.default_rng(0)
    words = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES][: TOPICS * WORDS]
    texts = [" ".join(words[p % TOPICS * WORDS + w] for w in draw.integers(0, WORDS, 8)) for p in range(PASSAGES)]
    texts[100:110] = texts[0:100:10]
    passages = [
        (f"p{i:03d}", "about " + text.split()[0] if i % 4 == 0 else "", text) for i, text in enumerate(texts)
    ]
    queries, qrels = {}, {}
    for split, count in (("train", 60), ("dev", 16), ("test", 16)):
        positives = draw.permutation(100)[:count]
        for i, p in enumerate(positives):
            name = f"{split}-{i:02d}"
            queries[name] = " ".join(draw.permutation(texts[p].split())[:3])
            others = [f"p{(p + TOPICS) % 100:03d}"] if i % 3 == 0 else []
            qrels.setdefault(split, {})[name] = [f"p{p:03d}", *others]
    return Collection.from_lists(passages, queries, qrels, to=folder)


def tiny_model(folder: Path, collection: Collection, *, dropout: float = 0.1, seed: int = 0) -> str:
    """A random BERT that knows the collection's words. Its tokenizer is not trained, which would differ by run."""
    rows = [np.arange(collection.n_passages), np.arange(collection.n_queries)]
    texts = [
        *collection.titles.take(rows[0]),
        *collection.texts.take(rows[0]),
        *collection.query_texts.take(rows[1]),
    ]
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: i for i, word in enumerate((*SPECIAL.values(), *words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=len(vocabulary),
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **SHAPE,
    )
    return str(_save(folder, BertModel, config, tokenizer, SPECIAL, seed))
