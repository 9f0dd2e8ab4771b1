"""Threads, device and precision of this process, set once and in one place."""

from __future__ import annotations

import os
import warnings


def set_threads(threads: int | None = None) -> int:
    """Let torch, its BLAS and the tokenizers share the same number of threads; returns it."""
    import torch

    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return threads


def pick_device(device: str | None = None) -> str:
    """The device by name, else CUDA where there is one, else the CPU."""
    import torch

    if device:
        return device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver too old for this torch is as good as none
        return "cuda" if torch.cuda.is_available() else "cpu"
