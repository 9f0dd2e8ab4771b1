"""Linear layers in bfloat16 whose product adds the bias: the same bits, and only where there is no gradient."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hardneg.models import linear
from hardneg.models.linear import FastLinear, use_fast_linear
from hardneg.process import hardware


@pytest.fixture(params=["oneDNN", "a stand-in"])
def products(request, monkeypatch):
    """The numbers of rows that came to oneDNN's operation, or to what stands in for it where it is absent."""
    seen = []
    if request.param == "oneDNN" and not hardware.adds_bias_in_bfloat16():
        pytest.skip("torch has no such product on this processor")
    real = (
        torch.ops.mkldnn._linear_pointwise if request.param == "oneDNN" else lambda x, w, b, *_: F.linear(x, w, b)
    )

    def counted(x, *others):
        seen.append(x.shape[-2])
        return real(x, *others)

    monkeypatch.setattr(linear, "adds_bias_in_bfloat16", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted, raising=False)
    return seen


def layer(wide=24, out=40, bias=True):
    torch.manual_seed(0)
    plain = nn.Linear(wide, out, bias=bias).bfloat16()
    fast = FastLinear(wide, out, bias=bias).bfloat16()
    fast.load_state_dict(plain.state_dict())
    return plain, fast


@pytest.mark.parametrize(("wide", "out"), [(24, 40), (13, 5), (384, 1536)])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_the_same_bits(products, rows, wide, out):
    plain, fast = layer(wide, out)
    x = torch.randn(1, rows, wide, generator=torch.Generator().manual_seed(rows)).bfloat16()
    with torch.no_grad():
        for given in (x, x[0], x.repeat(2, 2, 1)[:, ::2], x[:, :0]):
            torch.testing.assert_close(fast(given), plain(given), rtol=0, atol=0)
    assert products == [rows, rows]  # not what lies apart, and not nothing


def test_gradients_are_those_of_a_plain_layer(products):
    plain, fast = layer()
    x = torch.randn(7, 24).bfloat16()
    for module in (plain, fast):
        module(x).float().square().sum().backward()
    for one, two in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=0)
    assert products == []


@torch.no_grad()
def test_everything_else_is_left_to_torch(products, monkeypatch):
    plain, fast = layer(bias=False)
    x = torch.randn(7, 24)
    torch.testing.assert_close(fast(x.bfloat16()), plain(x.bfloat16()), rtol=0, atol=0)
    _, fast = layer()
    assert fast.float()(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):  # the weights are float32
        assert fast(x).dtype == fast(x.bfloat16()).dtype == torch.bfloat16
    monkeypatch.setattr(linear, "adds_bias_in_bfloat16", lambda: False)
    fast.bfloat16()(x.bfloat16())
    assert products == []


def test_layers_stay_the_objects_they_were():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), Own(3, 3)))
    before = [*model.modules()]
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    use_fast_linear(model)
    use_fast_linear(model)
    assert [*model.modules()] == before
    assert [type(module) for module in (model[0], *model[1])] == [FastLinear, FastLinear, Own]
    model(torch.zeros(1, 2))
    assert calls == [1]


@pytest.mark.parametrize("instructions", ["amx_bf16", "avx512_bf16"])
@pytest.mark.parametrize(
    "missing", ["_linear_pointwise", "_is_mkldnn_bf16_supported", "instructions", "oneDNN", "flags", "nothing"]
)
def test_the_product_is_used_where_nothing_is_missing(monkeypatch, missing, instructions):
    known = {"_linear_pointwise": print, "_is_mkldnn_bf16_supported": lambda: missing != "instructions"}
    known.pop(missing, None)
    monkeypatch.setattr(hardware, "cpu_flags", lambda: {"avx512f"} if missing == "flags" else {instructions})
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**known))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: missing != "oneDNN")
    assert hardware.adds_bias_in_bfloat16.__wrapped__() == (missing == "nothing")
