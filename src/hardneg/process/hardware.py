"""The abilities of the machine: instructions of its processor, and kernels for half precision and for bytes."""

from __future__ import annotations

import logging
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from hardneg.errors import SettingsError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]

VARIABLE = "HARDNEG_PRECISION"
BYTE_INSTRUCTIONS = {"avx512_vnni", "avx_vnni", "amx_int8"}
BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
LARGEST = 127  # of a signed byte


@cache
def cpu_flags() -> set[str]:
    """The instruction sets of the processor by Linux's names, which psutil does not give."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


@cache
def processor_name() -> str:
    """The processor's name by Linux, or what Python calls it; empty where neither knows one."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def name_of(device: str) -> str:
    """The hardware behind a type of device: what adds up in another order than other hardware of its type.

    Of a CPU these are also the instructions that torch's kernels use.
    """
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    used = torch.backends.cpu.get_cpu_capability(), *sorted(cpu_flags() & BFLOAT16_INSTRUCTIONS)
    return f"{processor_name() or 'unknown'} ({', '.join(used)})"


def has_half_kernels(device: torch.device) -> bool:
    """Whether attention in half precision has a fast kernel on a device: CUDA from Ampere on."""
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def fuses_half_attention(device: torch.device) -> bool:
    """Whether torch's fused attention in half precision is faster than plain products: with AMX, or not on a CPU.

    With AVX-512 BF16 alone the fused kernel multiplies small blocks as they lie: plain products take less time.
    """
    return device.type != "cpu" or "amx_bf16" in cpu_flags()


@cache
def adds_bias_in_bfloat16() -> bool:
    """Whether oneDNN's product of bfloat16 with a bias may be used: where its bits were compared.

    These have AMX or AVX-512 BF16. torch does not promise to keep the operation's name, so this looks whether it
    is there.
    """
    import torch

    if not cpu_flags() & BFLOAT16_INSTRUCTIONS:
        return False
    known = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(known, "_linear_pointwise"):
        return False
    return hasattr(known, "_is_mkldnn_bf16_supported") and bool(known._is_mkldnn_bf16_supported())


def multiplies_bfloat16(device: torch.device | str) -> bool:
    """Whether a device's hardware multiplies bfloat16: CUDA from Ampere on; AMX or AVX-512 BF16 on a CPU."""
    import torch

    device = torch.device(device)
    return has_half_kernels(device) or (device.type == "cpu" and bool(cpu_flags() & BFLOAT16_INSTRUCTIONS))


def needs_bfloat16_operands() -> bool:
    """Whether this processor multiplies in bfloat16 only what is stored in bfloat16.

    oneDNN computes products of float32 in bfloat16 with AMX, where it is allowed to. With AVX-512 BF16 alone it
    computes them in float32 in any case.
    """
    return "avx512_bf16" in cpu_flags() and "amx_bf16" not in cpu_flags()


def has_byte_kernels() -> bool:
    """Whether the processor multiplies and adds bytes in one instruction (VNNI, AMX), and torch uses it."""
    import torch

    return bool(cpu_flags() & BYTE_INSTRUCTIONS) and hasattr(torch, "_int_mm")


@cache
def byte_products_are_exact() -> bool:
    """Whether this processor multiplies the largest bytes without an error; older kernels add in 16 bits."""
    import torch

    for rows, dim in ((1, 4), (1, 64), (2, 768), (33, 1024)):
        signs = torch.arange(70 * dim).view(70, dim).remainder(3).sub(1).mul(LARGEST)
        a, b = signs[:rows].to(torch.int8).contiguous(), signs.to(torch.int8)
        for left, right in ((a, b), (a.abs(), b.abs())):
            if not torch.equal(torch._int_mm(left, right.T).long(), left.long() @ right.long().T):
                return False
    return True


def best_precision(device: torch.device | str) -> Precision:
    """The precision to work in where no setting says one: ``HARDNEG_PRECISION``, else the device's fastest.

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


def warn_if_emulated(precision: Precision, device: torch.device | str) -> None:
    """Warn where bfloat16 is asked for and the device does not multiply it.

    Emulated, it takes two to three times as long as float32.
    """
    if precision == "bfloat16" and not multiplies_bfloat16(device):
        log.warning(
            "this device does not multiply bfloat16: a new experiment is much faster with precision=float32"
        )
