"""What the machine gives an encoder: the precision that is fastest, and the memory that a batch takes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from hardneg.errors import SettingsError
from hardneg.models.packing import has_half_kernels

log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]

VARIABLE = "HARDNEG_PRECISION"
WORKSPACE = 64 << 20  # bytes that matrix products keep for themselves


def best_precision(device: torch.device | str) -> Precision:
    """The precision to work in where no setting says one: what ``HARDNEG_PRECISION`` says, else the fastest here.

    The variable makes machines of two kinds agree, and lets tests run in either precision on any processor.

    Raises
    ------
    SettingsError : the variable names no precision.
    """
    told = os.environ.get(VARIABLE)
    if not told:
        return "bfloat16" if multiplies_bfloat16(device) else "float32"
    if told not in get_args(Precision):
        what = f"the environment says {VARIABLE} = {told!r:.40}"
        raise SettingsError("BAD_SETTING", what, f"use {' or '.join(get_args(Precision))}, or unset it")
    return told  # type: ignore[return-value]


def multiplies_bfloat16(device: torch.device | str) -> bool:
    """Whether hardware multiplies bfloat16 there: CUDA from Ampere on, processors with AMX."""
    device = torch.device(device)
    return has_half_kernels(device) or (device.type == "cpu" and "amx_bf16" in _cpu_flags())


def has_byte_kernels() -> bool:
    """Whether the processor multiplies and adds bytes in one instruction (VNNI, AMX), and torch uses it."""
    return bool(_cpu_flags() & {"avx512_vnni", "avx_vnni", "amx_int8"}) and hasattr(torch, "_int_mm")


def warn_if_emulated(precision: Precision, device: torch.device | str) -> None:
    """Say so where bfloat16 is asked for and nothing multiplies it, which takes two to three times as long."""
    if precision == "bfloat16" and not multiplies_bfloat16(device):
        log.warning("nothing here multiplies bfloat16: a new experiment is much faster with precision=float32")


def bytes_of_batch(configs: Sequence[Any], tokens: int) -> int:
    """What ``tokens`` take inside the widest of these transformers; factors as measured, in float32."""
    widths = [16 * c.hidden_size + 3 * getattr(c, "intermediate_size", 4 * c.hidden_size) for c in configs]
    return tokens * max(widths) * 4 + WORKSPACE


@cache
def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
