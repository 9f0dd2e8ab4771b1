"""The world of the CUDA benchmarks (a BERT of random weights, random tokens of real lengths), and their timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from hardneg.data.tokens import TokenStore
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.tower import Tower
from hardneg.records import TokenBatch, offsets_of

CLS, SEP = 101, 102
SHORT, LONG = 32, 128  # the most tokens of a query and of a passage
SCALE = 20.0
NOT_RUN = "not run"


@dataclass(frozen=True)
class Size:
    """The sizes of model and data; by default the model is BERT-base."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    inner: int = 3072
    vocabulary: int = 30522
    passages: int = 32768  # passages that are encoded
    budgets: tuple[int, ...] = (16384, 65536)  # tokens of a flat batch; the first is the default
    padded: int = 512  # sequences of a padded batch
    queries_per_step: int = 8
    group: int = 32  # passages of a query
    steps: int = 10  # of one timed run of training
    square: int = 8192  # of the largest matrix product
    searched: int = 8192  # queries of a search
    vectors: int = 4_000_000  # most vectors that are searched
    mined: int = 65536  # queries that are mined for
    k: int = 200
    checked: int = 24  # passages that the gates compare
    repeats: int = 5


TOY = Size(
    layers=2,
    heads=2,
    width=32,
    inner=64,
    vocabulary=1000,
    passages=64,
    budgets=(512, 1024),
    padded=16,
    queries_per_step=2,
    group=4,
    steps=2,
    square=128,
    searched=16,
    vectors=3000,
    mined=32,
    k=20,
    checked=6,
    repeats=2,
)


@dataclass(frozen=True, eq=False)
class World:
    """The model and the data that all parts work on."""

    size: Size
    device: torch.device
    folder: Path
    encoder: BiEncoder
    queries: TokenStore
    passages: TokenStore

    @property
    def transformer(self) -> Any:
        return self.encoder.tower("passage").transformer


def make_world(size: Size, device: torch.device, folder: Path) -> World:
    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        initializer_range=1.6 / size.width**0.5,  # so that first tokens depend on the others
    )
    torch.manual_seed(0)
    tower = Tower(BertModel(config, add_pooling_layer=False), stand_in(size.vocabulary))
    settings = EncoderSettings(query_length=SHORT, passage_length=LONG, scale=SCALE)
    draw = np.random.default_rng(0)
    return World(
        size,
        device,
        folder,
        BiEncoder(settings, tower).to(device).eval(),
        random_store(draw, draw.lognormal(np.log(7.6), 0.35, 1024), 4, SHORT, size.vocabulary),
        random_store(draw, draw.lognormal(np.log(71), 0.35, size.passages), 16, LONG, size.vocabulary),
    )


def stand_in(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer that is needed for loading and never called."""
    words = {f"w{i}": i for i in range(vocabulary)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), pad_token="w0")


def random_store(draw: Any, lengths: np.ndarray, least: int, most: int, vocabulary: int) -> TokenStore:
    offsets = offsets_of(np.clip(lengths.round().astype(np.int64), least, most))
    ids = draw.integers(SEP + 1, vocabulary, offsets[-1]).astype(np.uint16)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = CLS, SEP
    return TokenStore(ids, offsets, f"random {len(lengths)}")


def plain_model(world: World) -> Any:
    """The encoder's transformer as transformers runs it."""
    config = BertConfig(**world.transformer.config.to_dict())
    config._attn_implementation = "sdpa"
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict(world.transformer.state_dict())
    placed: torch.nn.Module = model
    return placed.to(world.device).eval()


def pad(tokens: TokenBatch, device: torch.device, width: int | None = None) -> dict[str, Tensor]:
    """The inputs that transformers takes, padded to ``width`` or to the longest sequence."""
    real = np.arange(width or tokens.lengths.max()) < tokens.lengths[:, None]
    ids = np.zeros(real.shape, np.int64)
    ids[real] = tokens.ids
    return {"input_ids": upload(ids, device), "attention_mask": upload(real.astype(np.int64), device)}


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for the copy."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


# ---------------------------------------------------------------- timing


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, run: Callable[[], Any]) -> float:
    wait(device)
    begin = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - begin


def race(world: World, runs: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Time every run after two for warm-up, in rounds A B C, C B A, ...; ratios are to the first contender."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    peaks = {name: peak(world.device, run) for name, run in runs.items()}
    for run in runs.values():
        run()
    for repeat in range(world.size.repeats):
        for name in list(runs) if repeat % 2 == 0 else reversed(list(runs)):
            times[name].append(seconds(world.device, runs[name]))
    ours = next(iter(times.values()))
    return {name: row(taken, ours) | {"peak_mib": peaks[name]} for name, taken in times.items()}


def row(taken: list[float], ours: list[float]) -> dict[str, Any]:
    ratios = [theirs / mine for theirs, mine in zip(taken, ours, strict=True)]
    return {
        "ms": 1e3 * statistics.median(taken),
        "spread_ms": [1e3 * min(taken), 1e3 * max(taken)],
        "ratio": statistics.median(ratios),
    }


def peak(device: torch.device, run: Callable[[], Any]) -> int | None:
    """MiB of the device's memory that the run takes beyond what was used before."""
    if device.type != "cuda":
        run()
        return None
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    wait(device)
    return (torch.cuda.max_memory_allocated(device) - before) >> 20


def goal(found: float, wanted: float, *, most: bool = False) -> dict[str, Any]:
    """A figure beside its goal; with ``most`` the goal is the largest value, else the smallest."""
    return {"found": found, "goal": wanted, "reached": found <= wanted if most else found >= wanted}


# ---------------------------------------------------------------- ceilings


def matmul(world: World) -> dict[str, Any]:
    """TFLOP/s of matrix products alone: a large square, and the encoder's own at the flat batches' shapes."""
    n = world.size.square
    a, b = (torch.randn(n, n, device=world.device, dtype=torch.bfloat16) for _ in range(2))
    taken = race(world, {"square": lambda: [a @ b for _ in range(10)]})["square"]
    shapes = {str(tokens): products(world, tokens) for tokens in world.size.budgets}
    return {"square_tflops": 20 * n**3 / taken["ms"] / 1e9, "shape_matched_tflops": shapes}


def products(world: World, tokens: int) -> float:
    """TFLOP/s of all linear maps of the encoder on that many tokens, in bfloat16."""
    weights = [m.weight.detach().bfloat16() for m in world.transformer.modules() if isinstance(m, nn.Linear)]
    inputs = {
        width: torch.randn(tokens, width, device=world.device, dtype=torch.bfloat16)
        for width in {weight.shape[1] for weight in weights}
    }
    run = lambda: [F.linear(inputs[w.shape[1]], w).shape for w in weights]  # noqa: E731
    taken = race(world, {"products": run})["products"]
    return 2 * tokens * sum(w.numel() for w in weights) / taken["ms"] / 1e9


def work(world: World, lengths: np.ndarray) -> float:
    """FLOP of a forward pass on flat tokens; after the last attention only first tokens are computed."""
    size, tokens, n = world.size, float(lengths.sum()), len(lengths)
    qkv, rest = 6 * size.width**2, 2 * size.width**2 + 4 * size.width * size.inner
    attention = size.layers * 4 * size.width * float((lengths.astype(np.float64) ** 2).sum())
    return size.layers * tokens * qkv + (size.layers - 1) * tokens * rest + n * rest + attention
