"""sentence-transformers itself trains on our export, with its own trainer and loss."""

import math

import pytest

import hardneg as hn
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_sentence_transformers_trains_on_the_export(tmp_path):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )

    collection = tiny_collection(tmp_path / "collection")
    folder = tiny_model(tmp_path / "model", collection)
    hn.mine(collection, None, tmp_path / "pool", sources=["bm25"], count=5, depth=20)
    facts = hn.export_pool(
        tmp_path / "pool", collection, tmp_path / "train.jsonl.gz", format="sentence-transformers", negatives=3
    )
    data = datasets.load_dataset(
        "json", data_files=str(tmp_path / "train.jsonl.gz"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert data.column_names == ["anchor", "positive", "negative_1", "negative_2", "negative_3"]
    assert len(data) == facts["rows"] == 80

    transformer = models.Transformer(folder, max_seq_length=32)
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), "cls")
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        loss=losses.MultipleNegativesRankingLoss(model),
    )
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert all(math.isfinite(loss) for loss in logged)
    assert logged[-1] < logged[0] - 0.1
