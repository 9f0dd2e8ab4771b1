"""Towers that read pairs, against transformers itself; and a model on one that trains beside a bi-encoder."""

import copy
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    ElectraConfig,
    ErnieConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from hardneg.data.token_pairs import PairForm, PairTemplate
from hardneg.experiment.metrics import Metrics
from hardneg.models import tower
from hardneg.models.flat_attention import ATTENTION
from hardneg.models.loading import load_encoder, open_encoder
from hardneg.models.plain_bert import PlainBert
from hardneg.models.pretrained import read_json_file, read_tensors, read_transformer
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store, token_store
from hardneg.models.tower import Tower, TowerModel, publish_model, read_tower
from hardneg.records import TextTemplate, TokenBatch, offsets_of
from hardneg.search.retriever import untimed
from hardneg.storage.artifacts import read_manifest
from hardneg.storage.disk import foreign
from hardneg.training.checkpoint import checkpoints
from hardneg.training.gradient_cache import cached
from hardneg.training.loop import StepOutput
from hardneg.training.optim import linear
from hardneg.training.stage import Stage, Trainee
from worlds.few_texts import QUERIES, STUB, TEXTS
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

MAX_LENGTH = 64
LENGTHS = np.array([9, 64, 17, 40, 3, 17, 64, 17, 3])  # in no order
SECOND = np.array([4, 20, 17, 1, 2, 9, 63, 8, 0])  # where the second text begins; in one of them nowhere
WIDE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
SMALL = {"vocab_size": 100, "initializer_range": 0.3, "max_position_embeddings": MAX_LENGTH} | WIDE
KIN = SMALL | {"max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1, "type_vocab_size": 1}
SIDES = ("query", "passage")
TYPED = {
    "bert": BertConfig(**SMALL),
    "electra": ElectraConfig(**SMALL, embedding_size=16),
    "ernie": ErnieConfig(**SMALL),  # not packed
}
UNTYPED = {
    "roberta": RobertaConfig(**KIN),
    "xlm-roberta": XLMRobertaConfig(**KIN),
    "camembert": CamembertConfig(**KIN),
    "distilbert": DistilBertConfig(
        vocab_size=100,
        initializer_range=0.3,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=MAX_LENGTH,
    ),
    "mpnet": MPNetConfig(
        **{name: value for name, value in KIN.items() if name != "type_vocab_size"}
    ),  # not packed
}


def pair_batch():
    """Sequences of two texts each, with types."""
    ids = np.random.default_rng(5).integers(5, 100, LENGTHS.sum()).astype(np.int32)
    offsets = offsets_of(LENGTHS)
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], LENGTHS)
    return TokenBatch(ids, offsets, (places >= np.repeat(SECOND, LENGTHS)).astype(np.uint8))


BATCH = pair_batch()


@pytest.fixture(params=[*TYPED, *UNTYPED])
def both(request, folders):
    """The same weights twice: as transformers runs them by plain attention, and in a tower."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        plain = AutoModel.from_config((TYPED | UNTYPED)[request.param], attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(
        folders["bert"]
    )  # its pairs have token types; not all models take them
    tower = Tower(copy.deepcopy(plain), tokenizer)
    assert (tower.transformer.config._attn_implementation == ATTENTION) == (
        request.param not in ("ernie", "mpnet")
    )
    assert tower.takes_types == (request.param in TYPED)
    return plain, tower


def tower_at(folder):
    return read_tower(Path(folder), ModelSource.at(folder))[0]


def alone(model, batch, typed):
    """Each sequence by itself, without a mask."""
    states = []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids, types = (torch.from_numpy(x[start:end].astype(np.int64))[None] for x in (batch.ids, batch.types))
        states.append(model(input_ids=ids, **({"token_type_ids": types} if typed else {})).last_hidden_state[0])
    return states


def padded(model, batch, typed):
    """One padded batch, as everybody does it."""
    real = torch.arange(MAX_LENGTH) < torch.from_numpy(LENGTHS)[:, None]
    ids, types = torch.full(real.shape, model.config.pad_token_id), torch.zeros(real.shape, dtype=torch.long)
    ids[real], types[real] = (torch.from_numpy(x.astype(np.int64)) for x in (batch.ids, batch.types))
    told = {"token_type_ids": types} if typed else {}
    states = model(input_ids=ids, attention_mask=real.long(), **told).last_hidden_state
    return [one[:length] for one, length in zip(states, LENGTHS, strict=True)]


def gradients(model, vectors):
    target = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    (vectors * target).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("reference", [alone, padded])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packed_pairs_equal_the_plain_model_forward_and_backward(both, reference, pooling):
    plain, tower = both
    states = reference(plain, BATCH, tower.takes_types)
    expected = torch.stack([one[0] if pooling == "cls" else one.mean(0) for one in states])
    found = tower.pooled(BATCH, pooling)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    assert expected.std() > 0.1
    wanted, got = gradients(plain, expected), gradients(tower.transformer, found)
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = max(gradient.abs().max().item(), 1.0)
        torch.testing.assert_close(got[name], gradient, atol=1e-5 * scale, rtol=1e-4, msg=name)
    table = [gradient for name, gradient in wanted.items() if "token_type_embeddings" in name]
    assert not tower.takes_types or table[0][1].abs().max() > 0.1  # the second text's type is trained


def test_types_are_told_to_models_that_have_them_and_to_no_others(both):
    _, tower = both
    with torch.no_grad():
        found, bare = tower.pooled(BATCH, "cls"), tower.pooled(TokenBatch(BATCH.ids, BATCH.offsets), "cls")
    changed = (found != bare).any(dim=1).numpy()
    assert changed.tolist() == (tower.takes_types & (SECOND < LENGTHS)).tolist()


def test_a_tokenizer_whose_settings_leave_types_out_is_followed(bert):
    names = ["input_ids", "attention_mask"]
    library = AutoTokenizer.from_pretrained(bert)
    bare = PreTrainedTokenizerFast(tokenizer_object=library.backend_tokenizer, model_input_names=names)
    transformer = AutoModel.from_pretrained(bert)
    assert Tower(transformer, library).takes_types
    assert not Tower(transformer, bare).takes_types


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_pairs_from_stores_are_read_as_transformers_reads_two_texts(folders, family, tmp_path):
    """From texts to states by two ways: token stores and a tower, a tokenizer and a padded forward."""
    tower = tower_at(folders[family])
    library, plain = AutoTokenizer.from_pretrained(folders[family]), AutoModel.from_pretrained(folders[family])
    pairs = pair_store(tower, template(tower, 80, use_titles=False), STUB, tmp_path)
    query_rows, passage_rows = np.array([0, 1, 0, 1]), np.array([0, 1, 2, 3])
    texts = [QUERIES[row] for row in query_rows], [TEXTS[row] for row in passage_rows]
    asked = {"return_token_type_ids": family == "bert", "padding": True, "return_tensors": "pt"}
    told = library(*texts, truncation="only_second", max_length=80, **asked)
    with torch.no_grad():
        expected = plain.eval()(**told).last_hidden_state[:, 0]
        found = tower.eval().pooled(pairs.read(query_rows, passage_rows), "cls")
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    assert expected.std(0).max() > 0.01


# ---------------------------------------------------------------- a model on a tower


@dataclass(frozen=True)
class ScorerSettings:
    max_length: int = 60


class Scorer(TowerModel):
    """Transformer and linear head: the least that reads a pair and gives a number."""

    def __init__(self, settings, tower):
        super().__init__(settings, [tower])
        if tower.head is None:
            tower.head = nn.Linear(tower.width, 1)
            nn.init.normal_(tower.head.weight, std=0.02, generator=torch.Generator().manual_seed(0))
            nn.init.zeros_(tower.head.bias)

    def score(self, pairs):
        """[n] float32."""
        (tower,) = self.each_tower()
        with torch.autocast(self.device.type, enabled=False):
            return tower.head(tower.pooled(pairs, "cls")).squeeze(-1)


def save_scorer(scorer, path, *, inputs=None, replace=False):
    (tower,) = scorer.each_tower()
    with publish_model(scorer, path, inputs=inputs, replace=replace) as draft:
        tower.save(draft)
        draft.json("scorer.json", {"max_length": scorer.settings.max_length})
        with foreign(draft / "head.safetensors") as file:
            save_file(tower.head.state_dict(), file)


def load_scorer(folder):
    tower = tower_at(folder)
    scorer = Scorer(ScorerSettings(**read_json_file(Path(folder) / "scorer.json")), tower)
    tower.head.load_state_dict(read_tensors(Path(folder) / "head.safetensors"))
    return scorer.eval()


# ---------------------------------------------------------------- trained, saved, loaded


def template(tower, length, **of_passages):
    query, passage = TextTemplate("query", 24), TextTemplate("passage", 1, **of_passages)
    return PairTemplate.whole(query, passage, PairForm.of(tower.tokenizer), length)


@dataclass
class Rows:
    query_rows: list

    def micro(self):
        return [self]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    return collection, tiny_model(root / "model", collection), root


def training(folder, world):
    """A stage of a scorer and a bi-encoder that train on each query's positive and three other passages."""
    collection, model, root = world
    scorer, retriever = Scorer(ScorerSettings(), tower_at(model)), load_encoder(model)
    pairs = pair_store(scorer.each_tower()[0], template(scorer.each_tower()[0], 60), collection, root / "cache")
    queries, passages = (token_store(retriever, collection, root / "cache", side) for side in SIDES)
    positives = collection.qrels("train").positives()

    def batch(step):
        return Rows(np.random.default_rng(step % 2).permutation(len(positives))[:6].tolist())

    def rows_of(part):
        chosen = positives.select(np.array(part.query_rows))
        others = np.random.default_rng(part.query_rows[0]).integers(0, collection.n_passages, (6, 3))
        return chosen.query_rows, np.column_stack([chosen.first(), others])

    def score_pairs(part):
        query_rows, passage_rows = rows_of(part)
        tokens = pairs.read(np.repeat(query_rows, 4), passage_rows.ravel())
        scores = cached(lambda tokens, side: scorer.score(tokens)[:, None], 150)(tokens, "passage").view(6, 4)
        return StepOutput(nn.functional.cross_entropy(scores, torch.zeros(6, dtype=torch.long)))

    def score_vectors(part):
        query_rows, passage_rows = rows_of(part)
        q, p = retriever.encode_pair(queries.read(query_rows), passages.read(passage_rows.ravel()))
        return StepOutput(nn.functional.cross_entropy(q @ p.T, torch.arange(0, 24, 4)))

    rate = linear(2e-3, warmup=1, horizon=40)
    stage = Stage(
        [
            Trainee("ranker", scorer, score_pairs, batch, rate, save_scorer, {folder / "ranker": 12}),
            Trainee("retriever", retriever, score_vectors, batch, rate, save_encoder, {folder / "model": 4}),
        ],
        folder / "checkpoint",
        Metrics(folder / "metrics.jsonl"),
        episode=1,
        seed=3,
        inputs={"pairs": pairs.queries.digest},
        timed=untimed,
        checkpoint_every=4,
    )
    return stage, scorer, pairs


def train(folder, world, *, until=None):
    folder.mkdir(exist_ok=True)
    stage, scorer, pairs = training(folder, world)
    for turn in range(2):
        stage.advance("ranker", min(6 * (turn + 1), until or 12))
        if until is None:
            stage.advance("retriever", 2 * (turn + 1))
    return scorer, pairs


def test_a_scorer_trains_in_a_stage_beside_a_bi_encoder_and_comes_back_with_equal_bits(tmp_path, world):
    scorer, pairs = train(tmp_path / "run", world)
    rows = Metrics(tmp_path / "run/metrics.jsonl").read()
    assert [row["model"] for row in rows] == (["ranker"] * 6 + ["retriever"] * 2) * 2
    losses = [row["loss"] for row in rows if row["model"] == "ranker"]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.05
    loaded = load_scorer(tmp_path / "run/ranker")
    assert loaded.digest() == scorer.digest() == read_manifest(tmp_path / "run/ranker").facts["digest"]
    tokens = pairs.read(np.arange(8), np.arange(8))
    for precision in ("float32", "bfloat16"):
        with scorer.inference(precision), loaded.inference(precision):
            assert loaded.digest() == scorer.digest()
            assert torch.equal(loaded.score(tokens), scorer.score(tokens))
    assert scorer.training
    assert (
        load_encoder(str(tmp_path / "run/model")).digest() == read_manifest(tmp_path / "run/model").facts["digest"]
    )


def test_a_scorer_goes_on_from_its_checkpoint(tmp_path, world):
    whole, _ = train(tmp_path / "whole", world)
    train(tmp_path / "run", world, until=5)
    assert checkpoints(tmp_path / "run/checkpoint")
    assert train(tmp_path / "run", world)[0].digest() == whole.digest()


def test_the_digest_is_of_weights_head_settings_and_tokenizer(bert):
    def scorer(**settings):
        return Scorer(ScorerSettings(**settings), tower_at(bert))

    digests = [scorer().digest(), scorer().digest(), scorer(max_length=61).digest()]
    changed = scorer()
    with torch.no_grad():
        changed.each_tower()[0].head.bias += 1e-3
    digests.append(changed.digest())
    changed.each_tower()[0].tokenizer_digest = "another"
    digests += [changed.digest(), load_encoder(bert).digest()]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5
    assert "towers.0.head.weight" in scorer().state_dict()


@pytest.mark.parametrize("recalled", [False, True])
def test_where_a_file_of_weights_begins_makes_no_difference(tmp_path, folders, monkeypatch, recalled):
    """A header that is 8 bytes longer moves all weights, and one text alone is a product with a single row."""
    monkeypatch.setattr(tower, "read_transformer", read_transformer)  # not the one that copies
    found = []
    for name, told in (("one", {}), ("other", {"more": "12345678"})):
        folder = tmp_path / name
        shutil.copytree(folders["bert"], folder)
        file = folder / "model.safetensors"
        save_file(load_file(file), file, {"format": "pt"} | told)
        cache = tmp_path / "cache" if recalled else None
        for _ in range(2):  # the second time it is recalled
            read = read_tower(folder, ModelSource.at(folder), recalled=cache)[0].eval()
        assert isinstance(read.transformer, PlainBert) == recalled
        assert not any(weight.data_ptr() % 64 for weight in read.parameters())
        found.append([weight.detach().clone() for weight in read.parameters()])
    assert all(map(torch.equal, *found))


def test_a_model_that_is_in_use_is_neither_copied_nor_pickled(tmp_path, world):
    """A copy would have the weights in another precision, and never get its own ones back."""
    model = world[1]
    encoder = load_encoder(model)
    with encoder.inference("bfloat16"):
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="close the retriever before"):
                copied(encoder)
    assert copy.deepcopy(encoder).digest() == encoder.digest()


def test_a_model_that_is_recalled_can_be_copied_and_pickled(tmp_path, world):
    model = world[1]
    for _ in range(2):  # the second time it is recalled
        encoder = open_encoder(ModelSource.at(model), recalled=tmp_path)
    assert isinstance(encoder.each_tower()[0].transformer, PlainBert)
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert other.digest() == encoder.digest()
