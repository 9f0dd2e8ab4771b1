"""The matrix products that propose candidates: in which precision, and how far from the truth they can be.

These products never decide a result: every passage within the certified bound of the k-th best is scored exactly.
The bound has to hold on every machine, and a tight one saves work. It is twice the error of a product, since both
the passage that is dropped and those that beat it can be off. The error has four parts:

- Rounding of the inputs. With q' and d' for the rounded vectors,
  ``|q.d - q'.d'| <= |q - q'| |d| + |q'| |d - d'|`` (Cauchy-Schwarz). |q - q'| is measured for each query. For
  |d - d'| the bound takes the largest of any passage, if that was measured, else what rounding can take at most:
  2^-8 |d|, two and a half times as much.
- Rounding of the scores, by products that round them: 2^-8 of |q'| |d'|.
- Adding up in float32, in any order: gamma_n of Higham, "Accuracy and Stability of Numerical Algorithms",
  section 3.1, in units of :attr:`Product.unit`.
- What underflow can lose: inputs and sums below 2^-126 may count as zero, as Intel's TDPBF16PS has it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hardneg.errors import SettingsError
from hardneg.process.hardware import best_precision, needs_bfloat16_operands
from hardneg.search.vectors import vector_norms
from hardneg.surroundings import full_products

Precision = Literal["auto", "float32", "float64", "bfloat16", "float16", "int8"]

DENSE = 160  # with fewer passages for each hit, a float64 product costs less than scoring the hits anew
MANY = 256  # queries from which on a product costs more than rounding what it multiplies
SAFE = 2.0**126  # norms below it: no component becomes infinite when it is rounded to bfloat16
TINIEST = 2.0**-126  # smallest normal number of float32 and bfloat16
REDUCTIONS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
SLACK = 1 + 2.0**-8  # more than any float32 norm is off by


@dataclass(frozen=True)
class Product:
    """One way to multiply queries and passages.

    Attributes
    ----------
    rounded : what the vectors are rounded to.
    multiplied : what torch is given. With AMX these are float32 numbers that bfloat16 holds, too, and torch is
        allowed to compute in bfloat16. So nothing rounds the scores, and the permission changes no input.
    scores : what the scores are in.
    unit : the rounding error of one addition, relative.
    rounds_scores : the scores come rounded to ``multiplied``, as from torch's product of bfloat16 on the CPU.
    """

    rounded: torch.dtype
    multiplied: torch.dtype
    scores: torch.dtype
    unit: float
    rounds_scores: bool = False

    @property
    def is_rounding(self) -> bool:
        """Whether stored vectors may change when they are rounded."""
        return self.rounded == torch.bfloat16

    def capacity(self, k: int, passages: int) -> int:
        """Candidates of a query that are held: k, and room for new ones and for those within a wide margin."""
        return min((8 if self.is_rounding else 4) * k + 64, passages)

    def operand(self, vectors: Tensor, out: Tensor | None = None) -> Tensor:
        """Stored vectors [n, dim] as they are multiplied, on the device and in the memory of ``out``."""
        out = torch.empty_like(vectors, dtype=self.multiplied) if out is None else out
        if self.rounded != self.multiplied:  # float16 by way of float32: straight to bfloat16 takes twice as long
            vectors = (vectors if vectors.dtype == out.dtype else out.copy_(vectors)).to(self.rounded)
        elif self.rounds_scores:
            vectors = vectors.float()
        return out.copy_(vectors, non_blocking=True)  # a blocking copy would convert on the CPU

    def takes(self, vectors: Tensor, device: torch.device) -> bool:
        """Whether stored vectors can be multiplied without being copied or converted."""
        return vectors.device == device and vectors.dtype == self.rounded == self.multiplied

    def multiply(self, queries: Tensor, passages: Tensor, out: Tensor) -> None:
        """Scores [Q, n] of operands [Q, dim] and [n, dim]."""
        if self.multiplied == self.scores:
            torch.mm(queries, passages.T, out=out)
        elif self.rounds_scores:
            out.copy_(torch.mm(queries, passages.T))
        else:
            torch.mm(queries, passages.T, out_dtype=self.scores, out=out)

    @contextlib.contextmanager
    def leave(self) -> Iterator[None]:
        """Set, in the block, the precisions that the bound assumes, whatever the process has chosen."""
        with full_precision(cpu="bf16" if self.rounded != self.multiplied else "ieee"):
            yield

    def margin(self, queries: Tensor, norms: Tensor, max_norm: float, max_loss: float) -> Tensor:
        """The :func:`error_bound` of stored ``queries`` [Q, dim] over all passages.

        ``norms`` [Q] of the queries, ``max_norm`` of the passages, and ``max_loss``, the most that rounding takes
        from a passage, are upper bounds.
        """
        lost = loss(queries, self.rounded) if self.is_rounding else torch.zeros_like(norms)
        moved, sizes = lost * max_norm + (norms + lost) * max_loss, (norms + lost) * (max_norm + max_loss)
        if self.rounds_scores:
            moved += 2.0**-8 * SLACK * sizes  # half a unit of bfloat16, also of a score that sums have made larger
        return error_bound(queries.shape[1], self.unit, sizes, moved)


FLOAT32 = Product(torch.float32, torch.float32, torch.float32, 2.0**-24)
FLOAT64 = Product(torch.float64, torch.float64, torch.float64, 2.0**-53)
ALLOWED = Product(torch.bfloat16, torch.float32, torch.float32, 2.0**-23)
BFLOAT16 = Product(torch.bfloat16, torch.bfloat16, torch.float32, 2.0**-23, rounds_scores=True)


def products_of(device: torch.device) -> dict[str, Product]:
    """The products that can propose on a device, by precision.

    Units: AMX and AVX-512 add products of bfloat16, which are exact in float32, and round to nearest: twice 2^-24
    is on the safe side. Tensor cores align b + 1 terms to the largest, cut them and their sum off after 24 bits,
    and go on with the next b: a term costs at most (b + 2) / b * 2^-23, where b is 8 or more from Ampere on (Fasi,
    Higham, Mikaitis and Pranesh 2021, "Numerical behavior of NVIDIA tensor cores"). 2^-22 is on the safe side.
    """
    found = {"float32": FLOAT32, "float64": FLOAT64}
    if device.type == "cpu":
        return {**found, "bfloat16": BFLOAT16 if needs_bfloat16_operands() else ALLOWED}
    halves = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    return {**found, **{name: Product(half, half, torch.float32, 2.0**-22) for name, half in halves.items()}}


def choose(
    precision: Precision, queries: Tensor, together: int, *, passages: int, k: int, largest: float
) -> Product:
    """The product that proposes for stored ``queries`` [Q, dim], ``together`` at a time; ``largest`` bounds norms.

    Raises
    ------
    SettingsError : float16 products of vectors that are not stored so, or not on a CUDA device.
    """
    device = queries.device
    name = fastest(queries.dtype, device, together, passages, k) if precision == "auto" else precision
    if name == "bfloat16" and largest >= SAFE:
        name = "float32"
    products = products_of(device)
    if name not in products or (name == "float16" and queries.dtype != torch.float16):
        what = f"precision = {name!r} with {queries.dtype} vectors on {device.type}"
        fix = "float16 products take float16 vectors on a CUDA device; use precision='auto'"
        raise SettingsError("BAD_SETTING", what, fix)
    return products[name]


def fastest(stored: torch.dtype, device: torch.device, queries: int, passages: int, k: int) -> Precision:
    """The fastest precision: half where hardware has it and the product, not reading or rounding, takes the time.

    For many queries, and few passages for each hit, it is float64.
    """
    if queries >= 64 and passages < DENSE * k:
        return "float64"
    if device.type == "cuda" and torch.version.cuda is None:
        return "float32"  # another maker's device: nothing is known of its sums
    as_stored = device.type == "cuda" and stored == torch.float16  # nothing to round or convert
    if (as_stored or queries >= MANY) and best_precision(device) == "bfloat16":
        return "float16" if as_stored else "bfloat16"
    return "float32"


def loss(vectors: Tensor, rounded: torch.dtype) -> Tensor:
    """Upper bounds [n] float64 of the norm of what rounding takes from each stored vector [n, dim]."""
    left = vectors.float()  # exact: float16 or float32
    left = left - left.to(rounded).float()  # exact, too: the bits behind those that are kept
    return vector_norms(left) * SLACK + vectors.shape[1] ** 0.5 * TINIEST


def most_lost(max_norm: float, dim: int) -> float:
    """The most that :func:`loss` to bfloat16 gives for a vector [dim] of at most this norm."""
    return 2.0**-8 * max_norm * SLACK + dim**0.5 * TINIEST  # half a unit of each number


def error_bound(dim: int, unit: float, norms: Tensor, moved: Tensor | float = 0.0) -> Tensor:
    """The distance [Q] float64 below the k-th best proposal at which a passage certainly ranks below k others.

    Parameters
    ----------
    unit : the rounding error of one addition, relative.
    norms : [Q] bounds of |query| |passage|.
    moved : [Q] bounds of what rounding the inputs does to a dot product.

    The distance is the sum of twice the error of a dot product whose terms are added in any order,
    gamma_dim |q||d|; room for rounding scores and bounds to float32; and what underflow can lose.
    """
    gamma = dim * unit / (1 - dim * unit)
    return 2 * (norms * (gamma + 4 * 2.0**-24) + moved) + dim * 2.0**-123


# ---------------------------------------------------------------- settings of the process

_turn = threading.RLock()  # held in a block of full_precision: the settings are those of all threads
_open: tuple[int, dict[str, Any]] | None = None  # the thread in the outermost block, and the settings before it


@contextlib.contextmanager
def full_precision(cpu: str = "ieee") -> Iterator[None]:
    """Matrix products in full float32, sums of half-precision products too, whatever the process has chosen.

    ``cpu`` "bf16" gives leave to compute float32 products in bfloat16 there, where the processor has instructions
    for it; sums are float32 (oneDNN, "Floating-point math mode"). One thread at a time is in such a block: another
    one would change the settings in its middle, or take them for those that the process has chosen.
    """
    global _open
    # The end of another thread's work puts nothing of the caller's back in the middle.
    with full_products(), _turn:
        before, outer = _settings(), _open
        try:
            _open = outer or (threading.get_ident(), before)
            _choose({"cuda": "ieee", "mkldnn": cpu, "accumulation": False, **dict.fromkeys(REDUCTIONS, False)})
            yield
        finally:
            _choose(before)
            _open = outer


def _settings() -> dict[str, Any]:
    """The precisions of matrix products, as they are chosen for the process."""
    cuda, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return {
        "cuda": cuda.fp32_precision,
        "mkldnn": mkldnn.fp32_precision,
        "accumulation": cuda.allow_fp16_accumulation,
        **{name: (getattr(cuda, name), getattr(cuda, f"{name}_split_k")) for name in REDUCTIONS},
    }


def _choose(settings: dict[str, Any]) -> None:
    cuda, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    cuda.fp32_precision, mkldnn.fp32_precision = settings["cuda"], settings["mkldnn"]
    cuda.allow_fp16_accumulation = settings["accumulation"]
    for name in REDUCTIONS:
        setattr(cuda, name, settings[name])


def _in_fork() -> None:
    """In a forked process no other thread is in its block: the lock is free, and the settings are as before it."""
    global _turn, _open
    _turn = threading.RLock()
    if _open is not None and _open[0] != threading.get_ident():
        _choose(_open[1])
        _open = None


os.register_at_fork(after_in_child=_in_fork)
