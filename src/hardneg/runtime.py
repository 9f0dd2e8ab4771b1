"""Threads, device and precision of this process, set once and in one place."""

from __future__ import annotations

import os
import warnings

from hardneg.errors import SettingsError


def set_threads(threads: int | None = None) -> int:
    """Let torch, its BLAS and the tokenizers share the same number of threads; returns it."""
    import torch

    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return threads


def pick_device(device: str | None = None) -> str:
    """The device by name, else CUDA where there is one, else the CPU.

    Raises
    ------
    SettingsError : there is no such device here.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver too old for this torch is as good as none
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *["cuda"][:cuda], *(f"cuda:{i}" for i in range(cuda))]
    if device is not None and device not in known:
        raise SettingsError("NO_DEVICE", f"there is no device {device!r:.40} here", f"use {', '.join(known)}")
    return device or known[min(cuda, 1)]
