"""sentence-transformers' contenders, trained as its documentation says: trainer, losses, mining, batch sampler.

Trained states are measured on dev over the whole corpus by the library's own evaluator, and the best one is kept.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quality.clock import Clock
from quality.material import pool_file
from quality.rule import Point, Run


@dataclass(frozen=True)
class Way:
    """One way to train with sentence-transformers.

    Attributes
    ----------
    loss : ``mnrl`` (in-batch), ``cached`` (the same with larger batches), ``gist`` (guide: the frozen start).
    mining : the options of ``mine_hard_negatives``; None: nothing is mined.
    rounds : how often negatives are mined; after each mining, training makes an equal part of the steps.
    cut : tokens of a text in training steps; dev and the saved model read more. None: all read the same.
    rate : the learning rate, whatever the grid says; None: the grid's.
    """

    loss: str = "mnrl"
    batch: int = 32
    mining: Mapping[str, Any] | None = None
    rounds: int = 1
    cut: int | None = None
    rate: float | None = None


MARGIN = {"relative_margin": 0.05, "num_negatives": 4, "output_format": "n-tuple"}
CONTENDERS: dict[str, Way] = {
    "st-in-batch": Way(),
    "st-in-batch-3e-5": Way(rate=3e-5),
    "st-in-batch-1e-4": Way(rate=1e-4),
    "st-in-batch-128": Way("cached", 128),
    "st-mined": Way(mining=MARGIN),
    "st-mined-defaults": Way(mining={}),
    "st-mined-twice": Way(mining=MARGIN, rounds=2),
    "st-gist": Way("gist"),
    "st-in-batch-cut": Way(cut=64),
}


@dataclass
class Best:
    """The best state of a run so far, and the seconds of each measurement."""

    dev: dict[str, float] = field(default_factory=dict)
    name: str = ""
    value: float = float("-inf")
    weights: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


class Peer:
    """Trains one of sentence-transformers' contenders.

    Parameters
    ----------
    order : ``contender``, ``data``, ``base``, ``folder``, ``seed``, ``precision``, ``device``, ``dev_passages``
        (None: all), and ``batch`` (None: its own).
    """

    def __init__(self, order: Mapping[str, Any], clock: Clock) -> None:
        self.order, self.clock, self.way = order, clock, CONTENDERS[order["contender"]]
        self.folder = Path(order["folder"])
        with clock.stage("import"):
            from sentence_transformers import SentenceTransformer
        with clock.stage("load"):
            self.model = SentenceTransformer(order["base"], device=order["device"])
            self.model.model_card_data.generate_widget_examples = False  # they cost time and are not used here
            self.start = copy.deepcopy(self.model.state_dict())
            self.whole = self.model.max_seq_length
            self.pairs, self.corpus, self.dev = texts_of(order["data"])
            among = pool_of(order["data"], order["dev_passages"], self.corpus)
            self.evaluator = evaluator_of(among, self.dev)
        with clock.stage("dev"):
            self.before = self._measure()
        self.guide = copy.deepcopy(self.model) if self.way.loss == "gist" else None
        self.mined = self._mine() if self.way.mining is not None else None

    def train(self, point: Point, steps: int, looks: int, name: str) -> Run:
        """Make a run that begins with the starting model."""
        begun = self.clock.now()
        point = point if self.way.rate is None else replace(point, rate=self.way.rate)
        self.model.load_state_dict(self.start)
        best, mining, rounds = Best({"untrained": self.before}), 0.0, self.way.rounds
        made, training = 0, 0.0
        for number in range(rounds):
            if number:
                mark = self.clock.now()
                self.mined_now = self._mine()
                mining += self.clock.now() - mark
            else:
                self.mined_now = self.mined
            more = steps * (number + 1) // rounds - made
            mark, looked = self.clock.now(), sum(best.seconds)
            self._advance(point, made, more, steps, looks, best)
            made += more
            training += self.clock.now() - mark - (sum(best.seconds) - looked)
        folder = self.folder / name
        self.model.load_state_dict(best.weights)
        self.model.save_pretrained(str(folder))
        self.clock.spend("train", training)
        self.clock.spend("dev", sum(best.seconds))
        seconds = self.clock.now() - begun
        look = sum(best.seconds) / len(best.seconds)
        fixed = max(0.0, seconds - training - sum(best.seconds)) + look
        facts = {"mining": round(mining, 3)} if mining else {}
        return Run(
            point, steps, len(best.seconds), best.dev, best.name, best.value, folder, seconds, fixed,
            training / max(steps, 1), look, facts,
        )  # fmt: skip

    def _advance(self, point: Point, made: int, more: int, steps: int, looks: int, best: Best) -> None:
        """Make ``more`` further steps of a run, with their own schedule."""
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.training_args import BatchSamplers

        dataset = self.mined_now if self.mined_now is not None and len(self.mined_now) else self._pairs()
        arguments = SentenceTransformerTrainingArguments(
            str(self.folder / "trainer"),
            per_device_train_batch_size=min(self.order.get("batch") or self.way.batch, len(dataset)),
            max_steps=more,
            learning_rate=point.rate,
            warmup_steps=max(1, round(0.1 * more)),
            weight_decay=0.01,
            max_grad_norm=1.0,
            seed=self.order["seed"],
            data_seed=self.order["seed"] + made,
            bf16=self.order["precision"] == "bfloat16",
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            use_cpu=self.order["device"] == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            self.model,
            arguments,
            train_dataset=dataset,
            loss=self._loss(point),
            callbacks=[looking(self, made, more, steps, looks, best)],
        )
        with self._reading(self.way.cut):
            trainer.train()

    def _loss(self, point: Point) -> Any:
        from sentence_transformers import losses

        if self.way.loss == "gist":
            return losses.GISTEmbedLoss(self.model, self.guide, temperature=1 / point.scale)
        if self.way.loss == "cached":
            return losses.CachedMultipleNegativesRankingLoss(self.model, scale=point.scale, mini_batch_size=32)
        return losses.MultipleNegativesRankingLoss(self.model, scale=point.scale)

    def _pairs(self) -> Any:
        from datasets import Dataset

        anchors, positives = zip(*self.pairs, strict=True)
        return Dataset.from_dict({"anchor": list(anchors), "positive": list(positives)})

    def _mine(self) -> Any:
        """Mine negatives with the present model; the library leaves out queries for which it finds too few."""
        from sentence_transformers.util import mine_hard_negatives

        pairs = self._pairs()
        with self.clock.stage("mine"), self._precision():
            rows = mine_hard_negatives(
                pairs, self.model, corpus=list(self.corpus.values()), verbose=False, **(self.way.mining or {})
            )
        self.clock.note(mined=len(rows), of=len(pairs))
        return rows

    def measure(self, name: str, best: Best) -> None:
        """Measure the model on dev, and keep its weights while it is the best."""
        begun = self.clock.now()
        value = self._measure()
        best.dev[name] = value
        if value > best.value:
            best.name, best.value, best.weights = name, value, copy.deepcopy(self.model.state_dict())
        best.seconds.append(self.clock.now() - begun)
        self.clock.note(state=name, dev=value)

    def _measure(self) -> float:
        with self._precision(), self._reading(self.whole):
            found = self.evaluator(self.model)
        return float(next(value for name, value in found.items() if name.endswith("ndcg@10")))

    @contextmanager
    def _reading(self, length: int | None) -> Iterator[None]:
        """Cut texts at ``length`` tokens within the block; None: where the model cuts them."""
        own = self.model.max_seq_length
        self.model.max_seq_length = length or own
        try:
            yield
        finally:
            self.model.max_seq_length = own

    def _precision(self) -> Any:
        import torch

        if self.order["precision"] == "bfloat16":
            return torch.autocast(self.order["device"], dtype=torch.bfloat16)
        return nullcontext()


def looking(peer: Peer, made: int, more: int, steps: int, looks: int, best: Best) -> Any:
    """The callback that measures a run after equal shares of its steps, and after the last one."""
    from transformers import TrainerCallback

    due = {round(steps * (n + 1) / looks) for n in range(looks)} | {steps}

    class Looking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if made + state.global_step in due and state.global_step <= more:
                peer.measure(f"step-{made + state.global_step}", best)
                peer.model.train()

    return Looking()


Dev = tuple[dict[str, str], dict[str, set[str]]]  # queries, and their positives


def texts_of(data: str) -> tuple[list[tuple[str, str]], dict[str, str], Dev]:
    """Training pairs of texts, the corpus by id, and the dev queries with their positives by id."""
    from hardneg.api.inputs import collection_of

    found = collection_of(data)
    rows = range(found.n_passages)
    ids = found.passage_ids.take(rows)
    parts = zip(found.titles.take(rows), found.texts.take(rows), strict=True)
    texts = [f"{title} {text}" if title else text for title, text in parts]
    pairs = [
        (query, texts[row])
        for query, rows in positives(found, "train")
        for row in rows
    ]  # fmt: skip
    asked = {str(n): one for n, one in enumerate(positives(found, "dev"))}
    queries = {name: query for name, (query, _) in asked.items()}
    relevant = {name: {ids[row] for row in rows} for name, (_, rows) in asked.items()}
    return pairs, dict(zip(ids, texts, strict=True)), (queries, relevant)


def pool_of(data: str, passages: int | None, corpus: dict[str, str]) -> dict[str, str]:
    """The texts among which dev is judged, chosen beforehand and the same for hardneg; None: the whole corpus."""
    if passages is None:
        return corpus
    ids = json.loads(pool_file(Path(data), passages).read_text())
    return {name: corpus[name] for name in ids}


def positives(collection: Any, split: str) -> list[tuple[str, list[int]]]:
    """The queries of a split with the rows of their positives."""
    found = collection.qrels(split).positives()
    texts = collection.query_texts.take(found.query_rows)
    ends = found.offsets.tolist()
    rows = [found.passage_rows[a:b].tolist() for a, b in itertools.pairwise(ends)]
    return [(text, of_query) for text, of_query in zip(texts, rows, strict=True) if of_query]


def evaluator_of(corpus: dict[str, str], dev: Dev) -> Any:
    """The library's own evaluator over the given corpus, for the one measure that decides."""
    from sentence_transformers.evaluation import InformationRetrievalEvaluator

    cuts: dict[str, Sequence[int]] = {"mrr_at_k": [10], "ndcg_at_k": [10], "accuracy_at_k": [10]}
    cuts |= {"precision_recall_at_k": [10], "map_at_k": [10]}
    return InformationRetrievalEvaluator(*(dev[0], corpus, dev[1]), write_csv=False, **cuts)
