"""Encoding takes at most the memory that it announces."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PROGRAM = r"""
import re, sys
import numpy as np
from pathlib import Path
import transformers
from hardneg.process.memory import own_memory
from hardneg.models.flat_transformer import hidden_states, use_flat_attention
from hardneg.models.packing import lay_out
from hardneg.process.threads import set_threads
import torch

def field(name):
    return int(re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10

set_threads(2)
config = getattr(transformers, sys.argv[2])(num_hidden_layers=2)
model = transformers.AutoModel.from_config(config).eval()
use_flat_attention(model)
lengths = np.full(int(sys.argv[1]) // int(sys.argv[3]), int(sys.argv[3]))
ids = torch.randint(1000, 2000, (int(lengths.sum()),))
before = own_memory()
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
with torch.no_grad():
    hidden_states(model, ids, lay_out(lengths, torch.device("cpu")))
print(field("VmHWM") - field("RssFile") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tokens", "length"),
    [
        ("BertConfig", 2048, 128),
        ("BertConfig", 8192, 128),
        ("ModernBertConfig", 8192, 128),
        ("ModernBertConfig", 8192, 8192),
    ],
)
def test_a_batch_takes_no_more_than_is_said(kind, tokens, length):
    import transformers

    from hardneg.models.capacity import bytes_of_batch

    command = [sys.executable, "-c", PROGRAM, str(tokens), kind, str(length)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    said = bytes_of_batch([getattr(transformers, kind)()], tokens)
    assert said / 3 < int(re.findall(r"-?\d+", run.stdout)[-1]) <= said
