"""A training of a few steps for every recipe, in the tiny world."""

import hardneg as hn
from worlds.tiny_world import COMMON

SMALL = COMMON | {"measures": "RR@10 R@100", "device": "cpu"}
TELE = {"episodes": 2, "passages_reference": [4], "steps": 6, "stop_step": 3, "count": 6, "checkpoint_every": 2}
RECIPES = {
    "ance-tele": TELE,
    "warmup": {"mixtures": ["bm25", "in_batch"], "steps": 3, "count": 6},
    "star": {"steps": 4, "measure_every": 2},
    "adore": {"steps": 3, "cut": 10},
    "ance": {"refreshes": 1, "refresh_every": 3, "negatives_per_query": 2},
    "ar2": {
        "iterations": 2,
        "retriever_steps": 2,
        "ranker_steps": 2,
        "first_ranker_steps": 2,
        "negatives_per_query": 3,
        "ranker_queries_per_step": 4,
        "first_ranker_queries_per_step": 4,
        "rerank_depth": 10,
    },
    "ranker": {"steps": 3, "negatives_per_query": 3, "rerank": 10, "count": 6},
}


def train_small(recipe, world, out, **more):
    """Train by a recipe, from ``model`` if given, else from the world's model; returns the results."""
    values = SMALL | RECIPES[recipe] | more
    model = values.pop("model", world.model)
    values = {name: value for name, value in values.items() if recipe != "ranker" or name != "store_dtype"}
    return hn.train(recipe, world.collection, model, out, **values)
