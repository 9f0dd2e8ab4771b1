"""All measurements that need a CUDA device, in under ten minutes: gates, then rates beside ceilings and peers.

BERT-base of random weights on random tokens of MS MARCO's lengths. The outcome is written after every part, so
that a run that is cut short leaves figures; ``--toy`` makes everything small enough for a CPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from contest import machine
from gpu_gates import gates
from gpu_models import compiled, encode, profile, store, train
from gpu_search import mine, search
from gpu_world import TOY, Size, World, make_world, matmul

PARTS: dict[str, Callable[[World], dict[str, Any]]] = {
    part.__name__: part for part in (gates, matmul, encode, store, train, search, mine, profile, compiled)
}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts; the exit status is 0 if no part failed and every gate held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--toy", action="store_true", help="tiny sizes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    chosen = parser.parse_args(arguments)
    size, device = TOY if chosen.toy else Size(), torch.device(chosen.device)
    outcome: dict[str, Any] = {"machine": machine() | describe(device), "size": asdict(size)}
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(size, device, Path(folder))
        for name in chosen.parts or PARTS:
            outcome[name] = attempt(PARTS[name], world)
            chosen.out.write_text(json.dumps(rounded(outcome), indent=1) + "\n")
            print(name, json.dumps(rounded(outcome[name]), indent=1), flush=True)
    sound = all("failed" not in facts and facts.get("passed", True) for facts in outcome.values())
    return 0 if sound else 1


def attempt(part: Callable[[World], dict[str, Any]], world: World) -> dict[str, Any]:
    """The result of a part, or its fault. A part that fails does not stop the others."""
    begin = time.perf_counter()
    try:
        facts = part(world)
    except Exception:
        facts = {"failed": traceback.format_exc()}
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return facts | {"part_s": time.perf_counter() - begin}


def describe(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"device": str(device)}
    facts = torch.cuda.get_device_properties(device)
    return {"device": facts.name, "device_gib": facts.total_memory >> 30, "cuda": torch.version.cuda}


def rounded(facts: Any) -> Any:
    """Round to four digits, which is more than any figure here is certain to."""
    if isinstance(facts, float):
        return float(f"{facts:.4g}")
    if isinstance(facts, dict):
        return {name: rounded(fact) for name, fact in facts.items()}
    return [rounded(fact) for fact in facts] if isinstance(facts, list | tuple) else facts


if __name__ == "__main__":
    raise SystemExit(main())
