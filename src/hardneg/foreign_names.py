"""Other trainers' names for the settings and options of this one, for advice on unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ours:
    """The settings and the option that another trainer's name stands for.

    Attributes
    ----------
    settings : the settings that it stands for; a recipe may have all, some or none of them.
    option : the option of ``hardneg train`` for it, if there is one.
    note : how the value differs, where it does.
    """

    settings: tuple[str, ...] = ()
    option: str = ""
    note: str = ""


RATE = Ours(("learning_rate",), "--lr")
BATCH = Ours(("queries_per_step",), "--batch-size", "it counts queries")
EPOCHS = Ours(("epochs",), "--epochs")
STEPS = Ours(("steps",), "--steps")
LENGTH = Ours(("max_length", "passage_length"), "--max-length")
QUERY_LENGTH = Ours(("query_length",))
GROUP = Ours(("negatives_per_query",), "--negatives", "it counts the negatives alone")
NEGATIVES = Ours(GROUP.settings, "--negatives")
PRECISION = Ours(("precision",), "--precision", "float32 or bfloat16")
SEED = Ours(("seed",), "--seed")
BUDGET = Ours(("token_budget",), note="it counts tokens, not texts")
MICRO = Ours(("micro_queries",), note="it counts the queries of a micro-batch")
WARMUP = Ours(("warmup",), note="a share of the steps below 1, a number of steps from 1 on")
MEASURE = Ours(("measures",), note="the first of them decides")
OUT, MODEL, DATA = Ours(option="--out"), Ours(option="--model"), Ours(option="--data")

PARTS = Ours(
    ("refresh_every", "retriever_steps"),
    note="ance makes refreshes + 1 times as many, ar2 as many in each iteration",
)

OURS: dict[str, Ours] = {  # by the foreign name, in small letters with underscores
    **dict.fromkeys(("lr", "peak_lr", "max_lr"), RATE),
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size", "bs"), BATCH
    ),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs", "epoch", "train_epochs"), EPOCHS),
    "steps": PARTS,  # of a recipe that has no such setting
    **dict.fromkeys(("num_train_steps", "train_steps", "num_steps", "total_steps", "n_steps"), STEPS),
    **dict.fromkeys(
        ("max_seq_length", "max_seq_len", "max_len", "p_max_len", "passage_max_len", "max_passage_length"), LENGTH
    ),
    **dict.fromkeys(("q_max_len", "query_max_len", "max_query_length"), QUERY_LENGTH),
    **dict.fromkeys(("train_n_passages", "train_group_size", "group_size", "passages_per_query"), GROUP),
    **dict.fromkeys(
        ("num_negatives", "n_negatives", "hard_negatives", "num_hard_negatives", "negative_number"), NEGATIVES
    ),
    "pool": Ours(option="--pool"),
    **{name: Ours(option=f"--{name}") for name in ("train", "dev", "test")},  # in Python parts of splits
    "max_ram": Ours(option="--max-ram"),
    "max_vram": Ours(option="--max-vram"),
    **{name: Ours(option=f"--{name}") for name in ("threads", "estimate")},
    "temperature": Ours(("scale",), note="scale = 1 / temperature: 20 for 0.05"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps", "num_warmup_steps", "warmup_proportion"), WARMUP),
    **dict.fromkeys(("gradient_accumulation_steps", "mini_batch_size", "micro_batch_size"), MICRO),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clip", "gradient_clip_val"), Ours(("clip",))),
    **dict.fromkeys(("grad_cache", "use_grad_cache", "cached"), Ours(("gradient_cache",))),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), Ours(("recompute_layers",))),
    **dict.fromkeys(("gc_p_chunk_size", "gc_q_chunk_size"), Ours(("cache_tokens",), note="it counts tokens")),
    **dict.fromkeys(("fp16", "bf16", "amp", "mixed_precision", "torch_dtype", "dtype"), PRECISION),
    **dict.fromkeys(("random_seed", "random_state"), SEED),
    **dict.fromkeys(("per_device_eval_batch_size", "eval_batch_size", "encode_batch_size"), BUDGET),
    **dict.fromkeys(("eval_steps", "evaluation_steps", "eval_every"), Ours(("measure_every",))),
    **dict.fromkeys(("save_steps", "save_every", "checkpoint_steps"), Ours(("checkpoint_every",))),
    **dict.fromkeys(("early_stopping_patience", "early_stopping"), Ours(("patience",), note="in measurements")),
    **dict.fromkeys(("load_best_model_at_end", "save_best_model"), Ours(("keep",), note="keep = best")),
    **dict.fromkeys(("metric_for_best_model", "metrics", "metric"), MEASURE),
    **dict.fromkeys(("optim", "optimizer_class"), Ours(("optimizer",))),
    **dict.fromkeys(("pooling_mode", "pooler", "pooling_method"), Ours(("pooling",))),
    **dict.fromkeys(("normalize_embeddings", "normalise", "normalized"), Ours(("normalize",))),
    **dict.fromkeys(
        ("query_instruction", "query_prefix", "query_instruction_for_retrieval"), Ours(("query_prompt",))
    ),
    **dict.fromkeys(("passage_instruction", "passage_prefix", "document_prompt"), Ours(("passage_prompt",))),
    **dict.fromkeys(("range_max", "top_k", "topk", "mining_depth"), Ours(("depth",), note="hits to mine from")),
    **dict.fromkeys(("output_dir", "output_path", "save_dir"), OUT),
    **dict.fromkeys(("model_name_or_path", "model_name", "model_path"), MODEL),
    **dict.fromkeys(("dataset_name", "dataset", "train_data", "data_dir", "train_dir"), DATA),
}


def ours(name: str, settings: Iterable[str]) -> Ours | None:
    """The meaning of a foreign name, reduced to settings that exist; None if nothing known or existing is left.

    Parameters
    ----------
    settings : the settings that exist.
    """
    found = OURS.get(name.lstrip("-").replace("-", "_").lower())
    if found is None:
        return None
    there = set(settings)
    kept = tuple(setting for setting in found.settings if setting in there)
    return Ours(kept, found.option, found.note) if kept or found.option else None


def setting_advice(name: str, settings: Iterable[str]) -> str | None:
    """Advice on an unknown setting if another trainer uses the name; else None."""
    found = ours(name, settings)
    if found is None:
        return None
    words = f"did you mean '{found.settings[0]}'" if found.settings else f"did you mean the option {found.option}"
    words += f" (option {found.option})" if found.settings and found.option else ""
    return f"{words}? {found.note}".strip() if found.note else f"{words}?"


def option_advice(flag: str) -> str | None:
    """The option that another trainer's ``flag`` stands for; None if there is none."""
    found = OURS.get(flag.lstrip("-").replace("-", "_").lower())
    return found.option or None if found else None
