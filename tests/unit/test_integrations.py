"""Use with other tools: encoders as mteb calls them, metrics followed from another process, and TensorBoard."""

import contextlib
import importlib.util
import json
import threading
import time
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.config import read_preset, read_presets
from hardneg.data.tokens import token_batch
from hardneg.errors import ArtifactError, HardnegError, InputError, SettingsError
from hardneg.experiment.folder import Experiment
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.integrations import mteb as bridge
from hardneg.integrations.mteb import MtebEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.recipes.ance_tele import AnceTele
from hardneg.recipes.starting_model import starting_encoder
from worlds.tiny_models import tiny_bert
from worlds.tiny_world import SETTINGS, tiny_collection, tiny_model

with contextlib.suppress(ImportError):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

QUERIES = ["what finds passages", "short"]
TITLES = ["Retrievers", ""]
BODIES = ["dense vectors find passages", "no title here"]


class PromptType(Enum):
    """As in mteb 1.x and 2.x."""

    query = "query"
    passage = "passage"
    document = "document"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("bert"), QUERIES + TITLES + BODIES))


@pytest.fixture(scope="module")
def encoder(bert):
    return MtebEncoder(bert, device="cpu", token_budget=32, passage_prompt="passages ", query_prompt="find ")


# ---------------------------------------------------------------- mteb


def reference(bert, texts, side, prompt):
    """The vectors of texts one by one, by a model or one at a path."""
    model = load_encoder(bert) if isinstance(bert, str) else bert
    template = model.template(side)
    vectors = []
    with model.inference():
        for text in texts:
            batch = token_batch([prompt + text], [], template, model.tokenizer(side))
            vectors.append(model.encode(batch, side).numpy()[0])
    return np.stack(vectors)


@pytest.mark.usefixtures("in_float32")
def test_batches_of_queries_get_the_querys_prompt(bert, encoder):
    loader = [{"text": [QUERIES[0]], "query": [QUERIES[0]]}, {"text": [QUERIES[1]], "query": [QUERIES[1]]}]
    task = SimpleNamespace(name="Any")
    found = encoder.encode(
        iter(loader), task_metadata=task, hf_split="test", hf_subset="default", prompt_type=PromptType.query
    )
    assert (found.dtype, found.shape) == (np.float32, (2, 64))
    assert found == pytest.approx(reference(bert, QUERIES, "query", "find "), abs=1e-5)


@pytest.mark.usefixtures("in_float32")
def test_batches_of_passages_are_joined_with_their_titles_as_in_training(bert, encoder):
    text = [f"{title} {body}".strip() for title, body in zip(TITLES, BODIES, strict=True)]
    loader = [{"text": text, "title": TITLES, "body": BODIES}]
    found = encoder.encode(loader, prompt_type=PromptType.document)
    expected = reference(bert, ["Retrievers[SEP]" + BODIES[0], BODIES[1]], "passage", "passages ")
    assert found == pytest.approx(expected, abs=1e-5)
    untitled = encoder.encode([{"text": BODIES, "body": BODIES}], prompt_type=PromptType.document)
    assert untitled == pytest.approx(reference(bert, BODIES, "passage", "passages "), abs=1e-5)


@pytest.mark.usefixtures("in_float32")
def test_queries_are_cut_at_the_length_of_search(bert):
    long = " ".join(QUERIES + TITLES + BODIES)
    expected = reference(load_encoder(bert, query_length=16), [long], "query", "")
    searching = MtebEncoder(bert, device="cpu", query_length=4, search_query_length=16)
    assert searching.encode([long], prompt_type=PromptType.query) == pytest.approx(expected, abs=1e-5)
    cut = MtebEncoder(bert, device="cpu", query_length=4)
    assert np.abs(cut.encode([long], prompt_type=PromptType.query) - expected).max() > 1e-3


@pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="needs mteb")
def test_the_metadata_names_the_longest_text_of_search(bert):
    encoder = MtebEncoder(bert, device="cpu", query_length=4, passage_length=8, search_query_length=16)
    assert encoder.mteb_model_meta.max_tokens == 16


@pytest.mark.usefixtures("in_float32")
def test_plain_texts_and_records_of_older_versions_do_as_well(bert, encoder):
    found = encoder.encode(QUERIES, task_name="Any", prompt_type=PromptType.query, batch_size=7)
    assert found == pytest.approx(reference(bert, QUERIES, "query", "find "), abs=1e-5)
    records = [{"title": title, "text": body} for title, body in zip(TITLES, BODIES, strict=True)]
    batched = encoder.encode([{"title": TITLES, "body": BODIES, "text": BODIES}], prompt_type="passage")
    assert encoder.encode(records, prompt_type=PromptType.passage) == pytest.approx(batched, abs=1e-6)
    symmetric = encoder.encode(BODIES)
    assert symmetric == pytest.approx(reference(bert, BODIES, "passage", "passages "), abs=1e-5)


def test_nothing_has_no_vectors_and_windows_do_not_show(bert, encoder, monkeypatch):
    assert encoder.encode([], prompt_type="query").shape == (0, 64)
    texts = [f"{word} {i}" for i in range(7) for word in QUERIES]
    whole = encoder.encode(texts)
    monkeypatch.setattr(bridge, "WINDOW", 3)
    assert encoder.encode(texts) == pytest.approx(whole, abs=1e-5)


def test_scores_are_dot_products(encoder):
    a, b = np.array([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    assert encoder.similarity(a, b).tolist() == [[5.0, 3.0], [1.0, 1.0]]
    assert encoder.similarity_pairwise(a, b).tolist() == [5.0, 1.0]


def test_results_of_two_models_do_not_mix(bert, encoder, tmp_path):
    other = MtebEncoder(bert, device="cpu", pooling="mean")
    assert other.revision != encoder.revision == encoder.encoder.digest()
    assert encoder.name.startswith("hardneg/")
    assert MtebEncoder(encoder.encoder, "mine").revision == "mine"


def test_an_experiment_means_its_model_as_in_search(bert, encoder, tmp_path):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp/settings.json").write_text("{}")
    with pytest.raises(ArtifactError, match="NOT_FINISHED"):
        MtebEncoder(str(tmp_path / "exp"), device="cpu")
    save_encoder(load_encoder(bert), tmp_path / "exp/model")
    found = MtebEncoder(tmp_path / "exp", device="cpu")
    assert (found.name, found.revision) == ("hardneg/exp", MtebEncoder(f"{tmp_path}/exp/model").revision)


def test_documents_of_several_chunks_are_refused(bert):
    with pytest.raises(SettingsError, match="several chunks"):
        MtebEncoder(bert, chunks=2)


@pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="needs mteb")
@pytest.mark.filterwarnings("ignore")
def test_mteb_evaluates_it(bert, encoder, monkeypatch):
    import mteb

    monkeypatch.setenv("HARDNEG_PRECISION", "float32")  # the reference is float32; in bfloat16 ranks may differ
    from mteb.mocks.mock_tasks import MockRetrievalTask

    assert isinstance(encoder, mteb.EncoderProtocol)
    words = [word for text in QUERIES + TITLES + BODIES for word in text.split()]
    draw = np.random.default_rng(3)
    documents = [" ".join(draw.choice(words, 6)) for _ in range(30)]
    questions = [" ".join(draw.choice(words, 3)) for _ in range(12)]
    relevant = {f"q{i}": {f"d{2 * i}": 1, f"d{2 * i + 1}": 1} for i in range(12)}

    class Task(MockRetrievalTask):
        def load_data(self, *args, **named):
            super().load_data(*args, **named)
            for split in self.dataset["default"].values():
                corpus = {"id": [f"d{i}" for i in range(30)], "text": documents, "title": [""] * 30}
                split["corpus"] = Dataset.from_dict(corpus)
                split["queries"] = Dataset.from_dict({"id": [*relevant], "text": questions})
                split["relevant_docs"] = relevant

    from datasets import Dataset

    vectors = [
        reference(bert, *side) for side in ((questions, "query", "find "), (documents, "passage", "passages "))
    ]
    gains = 1 / np.log2(np.arange(2, 12))
    expected = []
    for i, scores in enumerate(vectors[0] @ vectors[1].T):
        found = [rank for rank, row in enumerate(np.argsort(-scores)[:10]) if row // 2 == i]
        expected.append(gains[found].sum() / gains[:2].sum())
    assert 0.05 < np.mean(expected) < 0.95, "or all would do"
    result = mteb.evaluate(encoder, Task(), cache=None)
    scores = result.task_results[0].scores
    assert {split: rows[0]["ndcg_at_10"] for split, rows in scores.items()} == pytest.approx(
        dict.fromkeys(("val", "test"), np.mean(expected)), abs=1e-4
    )
    assert encoder.mteb_model_meta.revision == encoder.revision


# ---------------------------------------------------------------- prompts


def test_prompts_of_a_family_are_taken_and_saved(bert, tmp_path):
    model = load_encoder(bert, prompts="e5")
    settings = model.settings
    assert (settings.query_prompt, settings.passage_prompt) == ("query: ", "passage: ")
    assert (settings.query_length, settings.passage_length) == (512, 512)
    save_encoder(model, tmp_path / "model")
    assert load_encoder(str(tmp_path / "model")).settings == settings
    config = json.loads((tmp_path / "model/config_sentence_transformers.json").read_text())
    assert config["prompts"] == {"query": "query: ", "document": "passage: "}


def test_what_is_set_wins_over_the_family(bert):
    settings = load_encoder(bert, prompts="bge", query_length=48).settings
    assert settings.query_prompt == "Represent this sentence for searching relevant passages: "
    assert (settings.passage_prompt, settings.query_length, settings.passage_length) == ("", 48, 512)


def test_every_family_is_a_setting_of_training_and_no_other():
    for family in read_presets("prompts"):
        assert AnceTele(prompts=family).prompts == family
        EncoderSettings(**read_preset("prompts", family))
    with pytest.raises(HardnegError, match="prompts"):
        AnceTele(prompts="e6")
    assert "prompts" in AnceTele().result_values()


def test_the_setting_reaches_the_model(bert):
    base = ModelSource(bert, device="cpu")
    settings = starting_encoder(base, AnceTele(prompts="e5", passage_length=40)).settings
    assert (settings.query_prompt, settings.query_length, settings.passage_length) == ("query: ", 512, 40)


def test_an_unknown_family_is_a_fault(bert):
    with pytest.raises(SettingsError, match=r"UNKNOWN_PRESET.*did you mean 'e5'"):
        load_encoder(bert, prompts="e6")


# ---------------------------------------------------------------- following


def rows(episode, *steps, model="retriever"):
    return [
        {"step": step, "episode": episode, "model": model, "loss": episode + step / 10, "lr": 0.5}
        for step in steps
    ]


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "exp").mkdir()
    return Experiment(tmp_path / "exp", tmp_path / "cache")


def test_what_is_there_is_yielded_and_no_more(experiment):
    experiment.metrics.append(rows(1, 1, 2) + rows(2, 1))
    with open(experiment.metrics.path, "a") as stream:
        stream.write('{"step": 2, "epi')  # torn by a crash
    assert list(hn.follow(experiment.path, wait=False)) == rows(1, 1, 2) + rows(2, 1)


def test_rows_of_models_that_are_trained_in_turn_are_all_followed(experiment):
    both = rows(1, 1, 2) + rows(1, 1, model="ranker") + rows(1, 3) + rows(1, 2, model="ranker")
    experiment.metrics.append(both)
    assert list(hn.follow(experiment.path, wait=False)) == both


def test_without_metrics_there_is_nothing_to_follow(tmp_path):
    with pytest.raises(InputError, match="NOT_FOUND"):
        list(hn.follow(tmp_path / "nowhere", wait=False))


def test_each_step_is_yielded_once_though_a_resumed_experiment_makes_some_again(experiment):
    found = []
    reader = threading.Thread(target=lambda: found.extend(hn.follow(experiment.path, poll=0.01)), daemon=True)
    reader.start()

    def wait_for(count):
        until = time.monotonic() + 60
        while len(found) < count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(found) == count

    experiment.metrics.append(rows(1, 1, 2, 3))
    wait_for(3)
    experiment.metrics.truncate(1, {"retriever": 1})  # the checkpoint was older
    experiment.metrics.append(rows(1, 2))
    time.sleep(0.05)
    experiment.metrics.append(rows(1, 3, 4))
    wait_for(4)
    experiment.metrics.append(rows(2, 1))
    experiment.finish({})
    reader.join(10)
    assert not reader.is_alive()
    assert found == rows(1, 1, 2, 3, 4) + rows(2, 1)


# ---------------------------------------------------------------- TensorBoard


def scalars(folder, name="loss"):
    """What TensorBoard shows: (step, value)."""
    events = EventAccumulator(str(folder)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["loss", "lr"]
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(name)]


def test_scalars_are_one_run_an_episode_and_resuming_doubles_none(experiment):
    pytest.importorskip("tensorboard")
    with tensorboard_writer(experiment, True):
        experiment.metrics.append(rows(1, 1, 2))
        experiment.metrics.append(rows(1, 3))
        experiment.metrics.append(rows(2, 1, 2, 3))
    experiment.metrics.truncate(2, {"retriever": 1})  # it was killed; the checkpoint was older
    with tensorboard_writer(experiment, True):
        experiment.metrics.append(rows(2, 2))
        experiment.metrics.append(rows(2, 3, 4))
        experiment.metrics.append(rows(2, 1, 2, model="ranker"))
    board = experiment / "tensorboard"
    assert sorted(path.name for path in board.iterdir()) == ["episode-1", "episode-2", "episode-2-ranker"]
    assert scalars(board / "episode-2-ranker") == [(1, 2.1), (2, 2.2)]
    assert scalars(board / "episode-1") == [(1, 1.1), (2, 1.2), (3, 1.3)]
    assert scalars(board / "episode-2") == [(1, 2.1), (2, 2.2), (3, 2.3), (4, 2.4)]


def test_an_experiment_writes_its_board_and_may_be_followed(tmp_path):
    pytest.importorskip("tensorboard")
    collection = tiny_collection(tmp_path / "collection")
    model = tiny_model(tmp_path / "model", collection)
    values = SETTINGS | {"episodes": 1, "steps": 3, "measures": "RR@10"}
    out = tmp_path / "exp"
    hn.train_ance_tele(collection, model, out, device="cpu", tensorboard=True, **values)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert list(hn.follow(out)) == metrics
    shown = EventAccumulator(str(out / "tensorboard/episode-1")).Reload()
    assert {"loss", "lr", "grad_norm", "queries"} <= set(shown.Tags()["scalars"])
    found = [(event.step, event.value) for event in shown.Scalars("loss")]
    assert found == [(row["step"], pytest.approx(row["loss"])) for row in metrics]
    again = hn.train_ance_tele(collection, model, out, device="cpu", **values)  # how, not what: it is the same one
    assert again["test"]


def test_nothing_is_written_where_it_is_not_wanted(experiment):
    with tensorboard_writer(experiment, False):
        experiment.metrics.append(rows(1, 1))
    assert not (experiment / "tensorboard").exists()


def test_a_missing_package_is_told_before_anything_runs(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tensorboard" else find(name)
    )
    with pytest.raises(hn.HardnegError, match=r"PACKAGE_MISSING.*pip install 'hardneg\[tensorboard\]'"):
        hn.settings_of("ance-tele", tensorboard=True)
    assert not hn.settings_of("ance-tele").tensorboard
