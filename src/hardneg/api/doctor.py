"""What this machine and this installation offer, and what is missing. Nothing here may fail."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil

from hardneg import __version__
from hardneg.process.control_groups import memory_left, memory_limit
from hardneg.process.hardware import cpu_flags, processor_name
from hardneg.process.threads import cpu_quota, default_threads, usable_cpus
from hardneg.storage.artifacts import cache_root
from hardneg.storage.os_errors import existing_parent

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "bm25s", "faiss-cpu")
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "MKL_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HARDNEG_CACHE",
    "HARDNEG_PRECISION",
)


def doctor() -> dict[str, Any]:
    """Versions, devices, instruction sets, threads, memory, the cache's place, and what is missing.

    Returns
    -------
    The findings by chapter (``versions``, ``processor``, ``devices``, ``memory``, ``cache``, ``extras``); a
    chapter that could not be made says why. ``missing``: for each extra that is not complete, the line that
    installs it.
    """
    chapters: dict[str, Callable[[], dict[str, Any]]] = {
        "versions": versions,
        "processor": processor,
        "devices": devices,
        "memory": memory,
        "cache": cache,
        "extras": extras,
    }
    found = {name: attempt(chapter) for name, chapter in chapters.items()}
    incomplete = [name for name, state in found["extras"].items() if state != "complete" and name != "unknown"]
    return {**found, "missing": {name: f"pip install 'hardneg[{name}]'" for name in incomplete}}


def attempt(chapter: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The facts of a chapter, or why it could not be written.

    A diagnosis must not need a healthy machine.
    """
    try:
        return chapter()
    except Exception as fault:
        return {"unknown": " ".join(f"{type(fault).__name__}: {fault}".split())}


def versions() -> dict[str, Any]:
    """The versions of hardneg, Python, the system and the packages that results depend on."""
    found = {"hardneg": __version__, "python": platform.python_version(), "system": platform.platform()}
    return found | {name: installed(name) or "not installed" for name in PACKAGES}


def installed(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> dict[str, Any]:
    """The processor's name, its instruction sets that speed encoding up, and the default number of threads."""
    return {
        "name": processor_name() or "unknown",
        "instructions": " ".join(flag for flag in INSTRUCTIONS if flag in cpu_flags()) or "none of those known",
        "cpus": os.cpu_count(),
        "usable_cpus": usable_cpus(),
        **({"cpu_quota": quota} if (quota := cpu_quota()) else {}),
        "threads": default_threads(),
        **{name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def devices() -> dict[str, Any]:
    """The devices that torch sees, and the precision in which each works fastest."""
    import torch

    from hardneg.process.hardware import best_precision

    found: dict[str, Any] = {
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "cpu_precision": best_precision("cpu"),
        "cuda": "none",
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            found[f"cuda:{i}"] = f"{about.name}, {gib(about.total_memory)}, {best_precision(f'cuda:{i}')}"
    return found


def memory() -> dict[str, Any]:
    """The memory of the machine, and the limits on it."""
    there = psutil.virtual_memory()
    found = {"total": gib(there.total), "available": gib(there.available)}
    limit, left = memory_limit(), memory_left()
    if limit is not None and left is not None and limit < there.total:
        found |= {"container_limit": gib(limit), "available": gib(min(there.available, left))}
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        found["process_limit"] = gib(soft)
    return found


def cache() -> dict[str, Any]:
    """The place of derived stores, and the free space there and where temporary files go."""
    place = cache_root()
    parent = existing_parent(place)
    return {
        "place": str(place),
        "writable": os.access(parent, os.W_OK),
        "free": gib(shutil.disk_usage(parent).free),
        "temporary_place": tempfile.gettempdir(),
        "temporary_free": gib(shutil.disk_usage(tempfile.gettempdir()).free),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def extras() -> dict[str, Any]:
    """The state of each extra: complete, or the packages that it lacks."""
    needed: dict[str, list[str]] = {}  # packages, and other extras as "hardneg[NAME,NAME]"
    for line in importlib.metadata.requires("hardneg") or []:
        if match := re.match(r"([\w.-]+(?:\[[\w,.-]+\])?).*;.*extra == ['\"]([\w-]+)['\"]", line):
            needed.setdefault(match[2], []).append(match[1])
    lacking = {extra: ", ".join(dict.fromkeys(lacked(extra, needed))) for extra in needed}
    return {extra: f"lacks {names}" if names else "complete" for extra, names in lacking.items()}


def lacked(extra: str, needed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the packages that an extra, and the extras in it, lack."""
    for one in needed.get(extra, ()):
        name, _, inner = one.rstrip("]").partition("[")
        if name == "hardneg":
            for other in inner.split(","):
                yield from lacked(other, needed)
        elif not installed(name):
            yield name


def gib(size: int) -> str:
    """A size in GiB for people."""
    return f"{size / 2**30:.1f} GiB"
