"""How many threads this process may use, and which device."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hardneg.errors import SettingsError
from hardneg.process.control_groups import groups_of
from hardneg.process.distributed import local_rank, local_size

_told: int | None = None  # the number of threads that set_threads was given


def set_threads(threads: int | None = None) -> int:
    """Give torch, its BLAS and the tokenizers the same number of threads; returns it.

    Parameters
    ----------
    threads : overrides the environment; None: :func:`default_threads`.
    """
    global _told
    import torch

    _told = threads
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
    torch.set_num_threads(usable_threads())
    os.environ.setdefault("RAYON_NUM_THREADS", str(usable_threads()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return usable_threads()


def usable_threads() -> int:
    """The number that :func:`set_threads` was given, else the default: threads or processes that may work here."""
    return _told or default_threads()


def default_threads() -> int:
    """The number that ``OMP_NUM_THREADS`` says, else this process's share of the CPUs.

    It is never more than the process may use.
    """
    if asked := _asked_of_openmp():
        return min(asked, usable_cpus())
    return max(usable_cpus() // local_size(), 1)


def usual_threads() -> set[int]:
    """The numbers of threads that torch may take by itself; it does not see quotas."""
    import psutil

    if asked := _asked_of_openmp():
        return {asked}
    cores = psutil.cpu_count(logical=False) or affinity()  # what MKL takes
    return {affinity(), min(cores, affinity())}


def _asked_of_openmp() -> int | None:
    """The number that ``OMP_NUM_THREADS`` says, as OpenMP reads it; None where it says none."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is one number a nesting level
    return int(text) if text.isdecimal() and int(text) > 0 else None


def affinity() -> int:
    """The number of CPUs that the system lets this process run on (``taskset``)."""
    return len(os.sched_getaffinity(0))


def usable_cpus() -> int:
    """The number of CPUs that this process may use, by its affinity and the quota of its control group."""
    return max(int(min(affinity(), cpu_quota() or affinity())), 1)


def cpu_quota() -> float | None:
    """The CPU time in CPUs that the control groups of this process may take; None where there is no limit."""
    return min((quota for folder in groups_of("cpu") if (quota := _quota_of(folder)) is not None), default=None)


def _quota_of(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # there is none, or it says "max"
        return None


def load_faiss() -> Any:
    """Import faiss, which is an optional package.

    Raises
    ------
    SettingsError : it is not installed.
    """
    try:
        import faiss
    except ImportError as fault:
        what = "this needs the package faiss-cpu"
        raise SettingsError("PACKAGE_MISSING", what, "pip install faiss-cpu") from fault
    return faiss


@contextlib.contextmanager
def threads_of_faiss() -> Iterator[None]:
    """Let faiss work in the block on as many threads as torch has; afterwards it has those of before.

    Loaded before torch it has an OpenMP of its own, which otherwise takes every core; else it shares torch's. A
    caller's program may use faiss, too, and OpenMP keeps a number for each thread that calls it.

    Raises
    ------
    SettingsError : faiss is not installed.
    """
    import torch

    faiss = load_faiss()
    threads = torch.get_num_threads()  # first: this sets the number that a new thread has in torch's OpenMP
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def pick_device(device: str | None = None) -> str:
    """The named device; without a name CUDA where there is one (to each process its own), else the CPU.

    Raises
    ------
    SettingsError : there is no such device here; or it is that of another process of this machine.
    """
    cuda = _cuda_devices()
    known = ["cpu", *["cuda"][:cuda], *(f"cuda:{i}" for i in range(cuda))]
    if device is not None and device not in known:
        raise SettingsError("NO_DEVICE", f"there is no device {device!r:.40} here", f"use {', '.join(known)}")
    if cuda < 2 or local_size() == 1 or device == "cpu":
        return device or known[min(cuda, 1)]
    own = f"cuda:{local_rank() % cuda}"
    if device not in (None, "cuda", own):
        what = f"{local_size()} processes of this machine on the device {device} alone"
        raise SettingsError(
            "BAD_SETTING", what, "leave it out: each takes its own; CUDA_VISIBLE_DEVICES says which"
        )
    return own


def device_sharers() -> int:
    """The processes of this machine that :func:`pick_device` gives one CUDA device, at most.

    All see the same devices, as ``torchrun`` starts them. Another launcher may have given each process one of its
    own, if ``CUDA_VISIBLE_DEVICES`` names a single one; then nothing is shared.
    """
    devices = _cuda_devices() if local_size() > 1 else 0
    if devices == 1 and "CUDA_VISIBLE_DEVICES" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ:
        return 1
    return -(-local_size() // devices) if devices else 1


def visible_devices() -> list[str]:
    """The CUDA devices of this process, each by the name that ``CUDA_VISIBLE_DEVICES`` has for it."""
    count, named = _cuda_devices(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count))) if named is None else [name.strip() for name in named.split(",")]
    return names[:count]


def _cuda_devices() -> int:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver too old for this torch is as good as none
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
