"""Types of models that transformers took over from code which published folders still name.

Such a folder needs no code of its own. It is recognised by what its ``config.json`` names and says, because a
folder may hold a model that somebody changed. This module loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
CLASSES = re.compile(r"AutoConfig|AutoModel\w*")
PLACES = re.compile(r"(^|\.)(layers|embeddings|embed_tokens)\.")  # in names of weights that decide vectors


@dataclass(frozen=True)
class Published:
    """How published folders of a type are written.

    Attributes
    ----------
    code : the references in their ``auto_map``.
    renamed : older name of a setting -> the name that transformers reads. A folder may hold both.
    fixed : setting -> the value that it must have if it is there. transformers passes over the older ones, and the
        code over the others.
    """

    code: re.Pattern[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


TYPES = {
    "eurobert": Published(
        re.compile(r"(configuration|modeling)_eurobert\.EuroBert\w+"), fixed={"is_causal": False}
    ),
    "nomic_bert": Published(
        re.compile(r"(nomic-ai/nomic-bert-2048--)?(configuration|modeling)_hf_nomic_bert\.NomicBert\w+"),
        renamed={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "layer_norm_epsilon": "layer_norm_eps",
        },
        fixed={
            "activation_function": "swiglu",
            "causal": False,
            "hidden_act": "silu",
            "is_causal": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "num_experts": 0,
            "parallel_block": False,
            "prenorm": False,
            "qkv_proj_bias": False,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
            "rotary_scaling_factor": None,
            "use_rms_norm": False,
        },
    ),
}


def needs_no_code(folder: Path, file: Path, config: Mapping[str, Any]) -> bool:
    """Whether the installed transformers reads a model as the code would that its settings name.

    A folder that hardneg wrote, which has settings of its own, names code only if this ran before. So it needs the
    code.

    Parameters
    ----------
    file, config : a JSON file of the folder that has an ``auto_map``, and its content.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = config.get("model_type")
    if file != folder / "config.json" or not isinstance(kind, str) or kind not in CONFIG_MAPPING_NAMES:
        return False
    ours = any(folder.glob("hardneg*.json"))
    return kind in TYPES and not ours and _is_published(config, TYPES[kind])


def _is_published(config: Mapping[str, Any], known: Published) -> bool:
    auto = config["auto_map"]
    named = isinstance(auto, dict) and all(
        CLASSES.fullmatch(name) and isinstance(reference, str) and known.code.fullmatch(reference)
        for name, reference in auto.items()
    )
    whole = all(type(config.get(name)) is int for name in NEEDED)
    same = all(old not in config or config[old] == config.get(new) for old, new in known.renamed.items())
    fixed = all(config.get(name) in (None, value) for name, value in known.fixed.items())
    return named and whole and same and fixed and _turns_plainly(config)


def _turns_plainly(config: Mapping[str, Any]) -> bool:
    """Whether positions turn by angles whose base is stated, the same in all settings, and are not scaled."""
    said = config.get("rope_parameters") or {}
    if not isinstance(said, dict) or config.get("rope_scaling") or said.get("rope_type", "default") != "default":
        return False
    stated = [base for base in (said.get("rope_theta"), config.get("rope_theta")) if base is not None]
    older = config.get("rotary_emb_base")
    return bool(stated) and all(base == stated[0] for base in stated) and older in (None, stated[0])


def without_place(names: Iterable[str]) -> list[str]:
    """Names of weights that decide vectors, sorted, of those that transformers' class did not take."""
    return sorted(name for name in names if PLACES.search(name))
