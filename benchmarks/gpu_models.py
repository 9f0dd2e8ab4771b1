"""Encoding and training on the device beside their peers and the matrix products that bound both."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_world import (
    LONG,
    NOT_RUN,
    SCALE,
    SEP,
    SHORT,
    World,
    goal,
    pad,
    plain_model,
    products,
    race,
    seconds,
    upload,
    wait,
    work,
)
from torch import Tensor, nn

from hardneg.losses import contrastive
from hardneg.models.flat_transformer import hidden_states
from hardneg.models.packing import lay_out, plan_batches
from hardneg.records import TokenBatch
from hardneg.search.embeddings import encode_store
from hardneg.training.batches import GroupBatch, group_scores, masked_columns
from hardneg.training.loop import StepOutput, train_steps
from hardneg.training.optim import adamw

# ---------------------------------------------------------------- encoding


def encode(world: World) -> dict[str, Any]:
    """Encode the tokens of all passages in bfloat16; the peers are a padded loop and sentence-transformers."""
    lengths, budgets = world.passages.lengths, world.size.budgets
    tokens = int(lengths.sum())
    runs: dict[str, Callable[[], Tensor]] = {f"hardneg {b}": partial(encode_packed, world, b) for b in budgets}
    runs["padded loop"] = padded_encoder(world, np.arange(len(lengths)))
    runs["padded loop, sorted"] = padded_encoder(world, np.argsort(-lengths, kind="stable"))
    wanted = {"padded loop": 2.0, "padded loop, sorted": 2.0, "sentence-transformers": 1.3}
    absent = {}
    try:
        runs["sentence-transformers"] = sentence_encoder(world)
    except ImportError:
        absent = {"sentence-transformers": NOT_RUN}
    cosines = lowest_cosines(runs)
    rows = race(world, runs)
    for fact in rows.values():
        fact["tokens_per_s"] = 1e3 * tokens / fact["ms"]
    ours = rows[f"hardneg {budgets[0]}"]
    share = work(world, lengths) / ours["ms"] / 1e9 / products(world, budgets[0])
    goals = {name: goal(rows[name]["ratio"], least) for name, least in wanted.items() if name in rows}
    goals["share_of_shape_matched"] = goal(share, 0.6)
    return {"tokens": tokens, "lowest_cosines": cosines, "goals": goals, **rows, **absent}


def lowest_cosines(runs: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """The lowest cosine of each contender's vectors with ours, after our mean is taken off."""
    ours = next(iter(runs.values()))()
    mean = ours.mean(0)
    found = {name: float(F.cosine_similarity(run() - mean, ours - mean).min()) for name, run in runs.items()}
    assert min(found.values()) > 0.98, found
    return found


def encode_packed(world: World, budget: int) -> Tensor:
    out = torch.empty(len(world.passages), world.size.width, device=world.device)
    with world.encoder.inference("bfloat16") as encoder:
        for batch in plan_batches(world.passages.lengths, budget):
            out[upload(batch, world.device)] = encoder.encode(world.passages.read(batch), "passage")
    return out


def padded_encoder(world: World, order: np.ndarray) -> Callable[[], Tensor]:
    """The usual loop over padded batches: passages in ``order``, each batch padded to its longest one."""
    model = plain_model(world).bfloat16()

    @torch.no_grad()
    def run() -> Tensor:
        out = torch.empty(len(order), world.size.width, device=world.device)
        for rows in np.split(order, range(world.size.padded, len(order), world.size.padded)):
            states = model(**pad(world.passages.read(rows), world.device)).last_hidden_state
            out[upload(rows, world.device)] = states[:, 0].float()
        return out

    return run


def sentence_encoder(world: World) -> Callable[[], Tensor]:
    """sentence-transformers without tokenising: a text is a row's number, as long as the row's passage."""
    folder = str(world.folder / "plain")
    with quiet():
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Pooling, Transformer

        plain_model(world).save_pretrained(folder)
        world.encoder.tower("passage").pretrained_tokenizer.save_pretrained(folder)
        modules = [Transformer(folder), Pooling(world.size.width, "cls")]
        model = SentenceTransformer(modules=modules, device=str(world.device)).bfloat16()
    texts = [str(i).ljust(8 * int(length)) for i, length in enumerate(world.passages.lengths)]

    def padded(texts: list[str], **_: Any) -> dict[str, Tensor]:
        return pad(world.passages.read(np.array([int(text) for text in texts])), world.device)

    for name in ("preprocess", "tokenize"):  # the name depends on the version
        setattr(model, name, padded)

    def run() -> Tensor:
        found = model.encode(texts, batch_size=world.size.padded, convert_to_tensor=True, show_progress_bar=False)
        return found.float().clone()  # out of inference mode

    return run


@contextmanager
def quiet() -> Iterator[None]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def store(world: World) -> dict[str, Any]:
    """Encode to disk, with shards, checksums and statistics. The first of three runs only warms up."""
    taken = []
    for i in range(3):
        with world.encoder.inference("bfloat16") as encoder:
            options: dict[str, Any] = {"side": "passage", "budget": world.size.budgets[0]}
            options["shard_rows"] = -(-len(world.passages) // 4)
            run = partial(encode_store, encoder, world.passages, world.folder / f"store-{i}", **options)
            taken.append(seconds(world.device, run))
    best = min(taken[1:])
    return {"ms": 1e3 * best, "tokens_per_s": world.passages.lengths.sum() / best}


# ---------------------------------------------------------------- training


def groups(world: World, step: int) -> GroupBatch:
    """The groups of a training step, which depend on its number alone."""
    draw, size = np.random.default_rng(step), world.size
    queries = draw.permutation(len(world.queries))[: size.queries_per_step].astype(np.int32)
    passages = draw.integers(0, len(world.passages), (size.queries_per_step, size.group)).astype(np.int32)
    return GroupBatch(queries, passages, size.queries_per_step)


def trainer(world: World) -> Callable[[int | None], Iterator[Any]]:
    """A function that makes so many steps (None: no limit) and never waits for the device between them."""
    encoder, made = world.encoder, 0
    optimizer = adamw(encoder)

    def loss(part: GroupBatch) -> StepOutput:
        scores = group_scores(encoder, part, world.queries, world.passages, "bfloat16")
        masked, targets = masked_columns(part, None, in_batch=True), part.targets()
        losses = contrastive(scores, upload(targets, world.device), upload(masked, world.device), scale=SCALE)
        return StepOutput(losses.sum() / part.step_queries)

    def run(steps: int | None) -> Iterator[Any]:
        nonlocal made
        start, made = made, made + (steps or 0)
        options: dict[str, Any] = {"start": start, "stop": made if steps else 10**6, "check_every": 10**6}
        return train_steps(encoder, loss, partial(groups, world), optimizer, lambda _: 1e-6, seed=1, **options)

    return run


def padded_trainer(world: World) -> Callable[[], None]:
    model = plain_model(world).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    size, device, made = world.size, world.device, 0
    targets = torch.arange(size.queries_per_step, device=device) * size.group

    def vectors(tokens: TokenBatch, width: int) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return model(**pad(tokens, device, width)).last_hidden_state[:, 0].float()

    def run() -> None:
        nonlocal made
        for step in range(made, made + size.steps):
            batch = groups(world, step)
            queries = vectors(world.queries.read(batch.query_rows), SHORT)
            passages = vectors(world.passages.read(batch.passage_rows.ravel()), LONG)
            F.cross_entropy(queries @ passages.T * SCALE, targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        made += size.steps

    return run


def train(world: World) -> dict[str, Any]:
    """Training steps in bfloat16 with float32 masters, dropout on, beside a loop padded to 128 tokens."""
    make, steps, peer = trainer(world), world.size.steps, f"padded-{LONG} loop"
    rows = race(world, {"hardneg": lambda: list(make(steps)), peer: padded_trainer(world)})
    lengths = [step_lengths(world, step) for step in range(steps)]
    tokens = sum(int(some.sum()) for some in lengths)
    for fact in rows.values():
        fact["ms_per_step"] = fact["ms"] / steps
        fact["tokens_per_s"] = 1e3 * tokens / fact["ms"]
    done = 3 * sum(work(world, some) for some in lengths) / rows["hardneg"]["ms"] / 1e9
    goals = {
        peer: goal(rows[peer]["ratio"], 2.5),
        "ms_per_step": goal(rows["hardneg"]["ms_per_step"], 25.0, most=True),
    }
    return {
        "tokens_per_step": tokens // steps,
        "share_of_shape_matched": done / products(world, tokens // steps),
        "issued_ms_per_step": issued(world),
        "goals": goals,
        **rows,
    }


def step_lengths(world: World, step: int) -> np.ndarray:
    """The lengths in tokens of a step's sequences; a passage that was drawn twice counts once."""
    batch = groups(world, step)
    passages = world.passages.lengths[np.unique(batch.passage_rows)]
    return np.concatenate([world.queries.lengths[batch.query_rows], passages])


def issued(world: World) -> float:
    """Milliseconds that the processor needs to issue a step; hidden as long as the device takes longer."""
    steps, taken = trainer(world)(None), []
    for _ in range(world.size.steps):
        wait(world.device)
        begin = time.perf_counter()
        next(steps)
        taken.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(taken)


# ---------------------------------------------------------------- where the time goes


def profile(world: World) -> dict[str, Any]:
    """The slowest operations of encoding one flat batch and of one training step: milliseconds and calls."""
    batch = world.passages.read(plan_batches(world.passages.lengths, world.size.budgets[0])[0])
    steps = trainer(world)(None)
    facts = {"training step": dearest(world, lambda: next(steps))}
    with world.encoder.inference("bfloat16") as encoder:
        facts["flat batch"] = dearest(world, lambda: encoder.encode(batch, "passage"))
    return facts


def dearest(world: World, run: Callable[[], Any], shown: int = 15) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity

    for _ in range(3):
        run()
    wait(world.device)
    cuda = world.device.type == "cuda"
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        run()
        wait(world.device)
    cost = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = sorted(found.key_averages(), key=lambda event: -getattr(event, cost))
    return {event.key[:80]: [getattr(event, cost) / 1e3, event.count] for event in events[:shown]}


def compiled(world: World) -> dict[str, Any]:
    """torch.compile of the encoder on one flat batch of fixed shape: what fusing could gain at most."""
    if world.device.type != "cuda":
        return {"hidden states": NOT_RUN}
    lengths = np.sort(world.passages.lengths[:200])[::-1].copy()
    ids = torch.randint(SEP + 1, world.size.vocabulary, (int(lengths.sum()),), device=world.device)
    layout = lay_out(lengths, world.device)
    with world.encoder.inference("bfloat16"):
        plain = partial(hidden_states, world.transformer, ids, layout)
        fused = torch.compile(plain)
        took = seconds(world.device, fused)
        return {"compilation_s": took, **race(world, {"eager": plain, "compiled": fused})}
