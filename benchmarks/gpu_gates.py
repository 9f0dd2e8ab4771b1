"""On the device, the fast paths compute what the slow ones do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_models import trainer
from gpu_search import vectors_like_real
from gpu_world import NOT_RUN, World, goal, pad, plain_model
from torch import Tensor

from hardneg.models.bi_encoder import BiEncoder
from hardneg.records import TokenBatch
from hardneg.search.exact import ExactIndex


def gates(world: World) -> dict[str, Any]:
    """Every error, beside the largest error that passes the gate."""
    encoder, device = world.encoder.eval(), world.device
    few = world.passages.read(np.arange(world.size.checked))
    target = torch.randn(len(few), world.size.width, generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        padded = plain_model(world)(**pad(few, device)).last_hidden_state[:, 0]
    packed, slow = (gradient(encoder, few, target, alone=alone) for alone in (False, True))
    half, half_slow = (gradient(encoder, few, target, alone=alone, half=True) for alone in (False, True))
    found = {
        "float32 packed = padded, vectors": (apart(packed[0], padded), 1e-4),
        "float32 packed = one by one, vectors": (apart(packed[0], slow[0]), 1e-4),
        "float32 packed = one by one, gradient": (far(packed[1], slow[1]), 1e-4),
        "bfloat16 packed = one by one, vectors": (apart(half[0], half_slow[0]), 1e-1),
        "bfloat16 packed = one by one, gradient": (far(half[1], half_slow[1]), 5e-2),
        "bfloat16 = float32, vectors": (apart(half[0], packed[0]), 1.5e-1),
        "bfloat16 = float32, gradient": (far(half[1], packed[1]), 1e-1),
        "exact search, numbers that are not the CPU's": (search_bits(world), 0),
        "training, steps that are not finite": (not_finite(world), 0),
    }
    facts = {name: {"error": e, "bound": bound, "passed": e <= bound} for name, (e, bound) in found.items()}
    return {"passed": all(fact["passed"] for fact in facts.values()), **facts, **waits(world)}


def gradient(
    encoder: BiEncoder, tokens: TokenBatch, target: Tensor, *, alone: bool, half: bool = False
) -> tuple[Tensor, Tensor]:
    """Vectors, and the gradient of their product with ``target``, flat."""
    encoder.zero_grad(set_to_none=True)
    rows = np.arange(len(tokens))
    with torch.autocast(encoder.device.type, torch.bfloat16, enabled=half):
        parts = [encoder.encode(tokens.take(part), "passage") for part in (rows[:, None] if alone else [rows])]
    vectors = torch.cat(parts)
    (vectors * target).sum().backward()
    gradients = torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])
    encoder.zero_grad(set_to_none=True)
    return vectors.detach(), gradients


def far(found: Tensor, wanted: Tensor) -> float:
    """Relative distance of two tensors; NaN never passes a gate."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def apart(found: Tensor, wanted: Tensor) -> float:
    """Relative distance of vectors without the mean of ``wanted``, which does not tell the vectors apart."""
    mean = wanted.double().mean(0)
    return far(found.double() - mean, wanted.double() - mean)


def search_bits(world: World) -> int:
    queries, passages = (vectors_like_real(world, n, seed=n) for n in (64, 20_000))
    here = ExactIndex(passages, device=world.device).search(queries, world.size.k)
    there = ExactIndex(passages.cpu()).search(queries.cpu(), world.size.k)
    pairs = zip(here, there, strict=True)
    return sum(int((mine.cpu().view(torch.int32) != wanted.view(torch.int32)).sum()) for mine, wanted in pairs)


def not_finite(world: World) -> int:
    steps = list(trainer(world)(3))
    return sum(not np.isfinite(float(value)) for step in steps for value in (step.loss, step.grad_norm))


def waits(world: World) -> dict[str, Any]:
    """The places in the source at which two training steps make the processor wait for the device."""
    if world.device.type != "cuda":
        return {"waits": NOT_RUN}
    steps = trainer(world)(None)
    for _ in range(3):
        next(steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(steps), next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
    return {"waits": places, "goals": {"waits": goal(len(places), 0, most=True)}}
