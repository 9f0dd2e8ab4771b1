"""Large batches through small memory (Gao et al., "Scaling Deep Contrastive Learning Batch Size", 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardneg.models.bi_encoder import Encode
from hardneg.models.packing import plan_batches, upload
from hardneg.records import Side, TokenBatch


def cached(encode: Encode, budget: int) -> Encode:
    """``encode`` in chunks of at most ``budget`` tokens, of which one at a time is held for the gradient.

    The vectors of all chunks are made first, and nothing else of them is kept. In the backward pass, once the
    gradient of the vectors is there, every chunk is encoded again, with the same draws of dropout, and passed
    through backwards. Loss and gradient are those of the whole at once; it costs a second forward pass. Of a batch
    that is a single chunk there is nothing to save, and it is encoded once.
    """

    def encode_cached(tokens: TokenBatch, side: Side) -> Tensor:
        plan = plan_batches(tokens.lengths, budget)
        if len(plan) < 2:
            return encode(tokens, side)
        seeds = torch.randint(1 << 62, (len(plan),)).tolist()  # of the chunks' dropout

        def encode_chunk(number: int) -> Tensor:
            torch.manual_seed(seeds[number])
            return encode(tokens.take(plan[number]), side)

        # With gradient here too, though it is let go at once: without one, other kernels may round differently.
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
