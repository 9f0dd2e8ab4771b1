"""What is done for speed on the CPU alone: what it is, where and why. Whoever needs to know asks here.

- Threads sleep when they have waited for some microseconds: in commands, and from Python where torch is not loaded
  yet. OpenMP's threads spin, each for a time slice, where a processor is taken (:func:`spin_briefly`).
- Number of threads: in commands and roles (:func:`tune`); from Python where nobody has said it
  (:func:`obey_limits`). torch does not see a container's quota, nor how many processes share a machine.
- The allocator keeps blocks: in commands and roles, with glibc (:func:`reuse_memory`). Mapping an encoder's large
  buffers anew costs a fifth of a forward pass. A user's own process keeps the allocator that it has.
- Dropout is drawn by numpy: in models that are packed (:func:`draws_dropout`). torch's drawing takes a tenth of a
  training step.
- Passages are searched as bytes: where the processor multiplies bytes and queries are few
  (:func:`searches_bytes`). Reading passages takes the time, and bytes are a quarter of float32.

No result depends on any of it but the draws of dropout, which are those of the seed on every processor.
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
    """Let torch take no more threads than a command would, and let them spin as briefly, once a process.

    Callers from Python need it; commands call :func:`tune`. What somebody has said is left alone. Before torch is
    loaded the environment says it, for OpenMP and for child processes. Afterwards torch is told the number of
    threads, if it has the one that it takes by itself: any other is the user's. What torch is told later stays as
    it is. One case cannot be told apart: a user asked for just that number before the first use of hardneg.
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
    """Let threads soon sleep while they wait for one another; returns how often they look before, None: as it was.

    OpenMP's threads look 300,000 times and more. If another program takes a processor, whoever waits for the
    thread that stood there spins for a whole time slice, in each of thousands of short parallel parts: "While
    other programs run" in docs/benchmarks.md has figures. ``BRIEF`` looks cost nothing on a quiet machine; where
    others run already, threads sleep at once. What the environment says is left alone, and nothing can be done
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


def searches_bytes(*devices: torch.device) -> bool:
    """Whether passages that lie on these devices may be searched as bytes (:mod:`hardneg.search.codes`)."""
    return all(one.type == "cpu" for one in devices) and has_byte_kernels() and byte_products_are_exact()
