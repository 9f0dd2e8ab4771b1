"""Large batches through small memory (Gao et al., "Scaling Deep Contrastive Learning Batch Size", 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardneg.models.bi_encoder import Encode
from hardneg.models.dropout import seed_draws
from hardneg.models.packing import plan_batches, upload
from hardneg.records import Side, TokenBatch


def cached(encode: Encode, budget: int) -> Encode:
    """Make ``encode`` work in chunks of at most ``budget`` tokens, and hold activations of one chunk at a time.

    The forward pass encodes all chunks and keeps only their vectors. When the backward pass knows the gradient of
    the vectors, it encodes each chunk again, with the same dropout, and passes the gradient through it. Loss and
    gradient are those of one whole batch, at the cost of a second forward pass. A batch that is a single chunk is
    encoded only once.
    """

    def encode_cached(tokens: TokenBatch, side: Side) -> Tensor:
        plan = plan_batches(tokens.lengths, budget)
        if len(plan) < 2:
            return encode(tokens, side)
        seeds = torch.randint(1 << 62, (len(plan),)).tolist()  # one for the dropout of each chunk

        def encode_chunk(number: int) -> Tensor:
            seed_draws(seeds[number])
            return encode(tokens.take(plan[number]), side)

        # Autograd stays on, although the graph is dropped at once: without autograd, torch may choose other
        # kernels, which may round differently.
        chunks = [encode_chunk(number).detach() for number in range(len(plan))]
        places = [upload(rows, chunks[0].device) for rows in plan]
        vectors = chunks[0].new_empty(len(tokens), chunks[0].shape[1])
        vectors[torch.cat(places)] = torch.cat(chunks)

        @torch.enable_grad()
        def replay(gradient: Tensor) -> None:
            for number, rows in enumerate(places):
                encode_chunk(number).backward(gradient[rows])

        vectors.requires_grad_().register_hook(replay)
        return vectors

    return encode_cached
