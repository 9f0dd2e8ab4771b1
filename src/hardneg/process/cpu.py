"""All measures for speed on the CPU alone: what each is, where it applies, and why. Other modules ask here.

- Threads sleep when they have waited for some microseconds: in commands, and from Python where torch is not loaded
  yet. By default OpenMP's threads spin, and for a whole time slice if another program has taken a processor
  (:func:`spin_briefly`).
- The number of threads is set in commands and roles (:func:`tune`), and from Python where the user has not set it
  (:func:`obey_limits`). torch sees neither a container's quota nor how many processes share a machine.
- The allocator keeps blocks: in commands and roles, with glibc (:func:`reuse_memory`). Mapping an encoder's large
  buffers anew costs a fifth of a forward pass. A user's own process keeps the allocator that it has.
- Dropout is drawn by numpy: in models that are packed (:func:`draws_dropout`). torch's drawing takes a tenth of a
  training step.
- Passages are searched as bytes: where queries are few, and the processor multiplies bytes or numba is installed
  (:mod:`hardneg.search.byte_products`). Reading passages takes the time, and bytes are a quarter of float32.

No result depends on these measures, except the draws of dropout; they depend on the seed alone on every processor.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hardneg.process.hardware import byte_products_are_exact, has_byte_kernels
from hardneg.process.threads import default_threads, set_threads, usual_threads

if TYPE_CHECKING:
    import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEEP_BYTES = 1 << 30
BRIEF = 2000  # looks of a waiting thread before it sleeps, some 30 microseconds

_obeyed = False

# ---------------------------------------------------------------- at the start


def tune(threads: int | None = None) -> int:
    """Set up a process that only computes: its threads, and an allocator that keeps blocks; returns the threads.

    They are ``threads``, else :func:`~hardneg.process.threads.default_threads`.
    """
    reuse_memory()
    return set_threads(threads)


def obey_limits() -> None:
    """Let torch take no more threads than a command would, and let them spin as briefly; only the first call acts.

    Callers from Python need it; commands call :func:`tune`. Numbers that the user has set stay. Before torch is
    loaded, the number is set in the environment, for OpenMP and for child processes. Afterwards it is set in
    torch, but only if torch has a number that it takes by itself, since any other was set by the user. A number
    that the user sets later stays, too. One case cannot be told apart: before the first use of hardneg, the user
    asked for just the number that torch takes by itself.
    """
    global _obeyed
    if _obeyed:
        return
    _obeyed = True
    spin_briefly()
    limit, torch = default_threads(), sys.modules.get("torch")
    if torch is None and limit < max(usual_threads()):
        os.environ["OMP_NUM_THREADS"] = str(limit)
        os.environ.setdefault("RAYON_NUM_THREADS", str(limit))  # the tokenizers'
    elif torch is not None and limit < torch.get_num_threads() and torch.get_num_threads() in usual_threads():
        torch.set_num_threads(limit)


def spin_briefly() -> int | None:
    """Let threads that wait for one another sleep soon; returns how often they look first, None: nothing was set.

    By default OpenMP's threads look 300,000 times and more. If another program takes a processor, all threads that
    wait for the displaced one spin for a whole time slice, in each of thousands of short parallel parts: "While
    other programs run" in docs/benchmarks.md has figures. ``BRIEF`` looks cost nothing on a quiet machine; where
    other programs run already, threads sleep at once. Settings in the environment stay, and nothing can be set
    once torch is loaded.
    """
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() or "torch" in sys.modules:
        return None
    looks = 0 if _others_run() else BRIEF
    os.environ["GOMP_SPINCOUNT"] = str(looks)
    return looks


def _others_run(samples: int = 5) -> bool:
    """Whether another thread runs or waits for a processor at each of so many looks, 2 ms apart."""
    for _ in range(samples):
        try:  # psutil would look at every process: 31 ms, not 0.1
            running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        except (OSError, IndexError, ValueError):
            return False
        if running <= 1:
            return False
        time.sleep(0.002)
    return True


def reuse_memory() -> bool:
    """Let glibc keep freed blocks instead of handing them back to the system after every operation.

    Encoders allocate and free the same few large buffers again and again; mapping them anew costs a fifth of the
    CPU time of a forward pass. True where the allocator took the settings.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, KEEP_BYTES) and mallopt(M_TRIM_THRESHOLD, KEEP_BYTES))


# ---------------------------------------------------------------- asked on the way


def draws_dropout(device: torch.device) -> bool:
    """Whether dropout on this device is drawn by numpy's generator (:mod:`hardneg.models.dropout`)."""
    return device.type == "cpu"


def multiplies_bytes() -> bool:
    """Whether the processor has instructions for products of bytes, and torch uses them without an error."""
    return has_byte_kernels() and byte_products_are_exact()
