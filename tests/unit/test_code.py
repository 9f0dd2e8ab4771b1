"""A model's own Python code runs only at a revision that the user names."""

import json
import shutil
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import hardneg as hn
from hardneg.errors import ArtifactError, SettingsError, TrustError
from hardneg.models import code
from hardneg.models.loading import load_encoder
from hardneg.models.pretrained import _choose_no_kernel
from hardneg.models.saving import save_encoder
from hardneg.records import TokenBatch
from worlds.tiny_world import SETTINGS, tiny_collection, tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = """
from pathlib import Path
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from torch import nn

from .configuration_own import OwnConfig
from .parts import mix

Path({mark!r}).write_text("ran")


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layer = nn.ModuleList([nn.Linear(config.hidden_size, config.hidden_size)])
        self.post_init()

    def forward(self, input_ids, attention_mask):
        return BaseModelOutput(last_hidden_state=self.layer[0](mix(self.embeddings(input_ids), attention_mask)))
"""
CONFIG = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size=9, hidden_size=8, max_position_embeddings=64, **others):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.max_position_embeddings, self.num_hidden_layers = max_position_embeddings, 1
        super().__init__(**others)
"""
PARTS = '''
def mix(states, mask):
    """Every token with the mean of its text."""
    mask = mask[:, :, None]
    return states + (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
'''


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory):
    """A cache for the code that transformers loads, other than the user's."""
    with pytest.MonkeyPatch.context() as patch:
        place = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", place)
        patch.setattr(sys, "path", list(sys.path))
        yield


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    monkeypatch.setattr(code, "_allowed", set())


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return tiny_collection(tmp_path_factory.mktemp("code") / "collection")


@pytest.fixture
def own(collection, tmp_path):
    """A model of a type that transformers does not know."""
    folder = tmp_path / "own"
    tiny_model(folder, collection)
    vocabulary = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    auto = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    auto["AutoModelForMaskedLM"] = "elsewhere/model--modeling.Other"  # never loaded here
    config = {"model_type": "own", "vocab_size": vocabulary, "hidden_size": 8, "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(MODEL.format(mark=str(tmp_path / "mark")))
    (folder / "configuration_own.py").write_text(CONFIG)
    (folder / "parts.py").write_text(PARTS)
    draw = torch.Generator().manual_seed(0)
    shapes = {"embeddings.weight": (vocabulary, 8), "layer.0.weight": (8, 8), "layer.0.bias": (8,)}
    weights = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def digest_asked_for(folder):
    """What the refusal says to pass."""
    with pytest.raises(TrustError, match="REMOTE_CODE") as refused:
        load_encoder(str(folder))
    return refused.value.fix.split('hn.allow_code("')[1].split('"')[0]


def test_it_never_runs_unless_its_digest_is_named(own, tmp_path):
    digest = digest_asked_for(own)
    hn.allow_code("0" * 64, COMMIT)
    assert digest_asked_for(own) == digest
    assert not (tmp_path / "mark").exists()
    hn.allow_code(digest)
    encoder = load_encoder(str(own), pooling="mean")
    assert (tmp_path / "mark").exists()
    assert encoder.code == [digest]
    batch = TokenBatch(np.array([5, 6, 7, 8, 9], np.int32), np.array([0, 2, 5], np.int64))
    alone = TokenBatch(np.array([7, 8, 9], np.int32), np.array([0, 3], np.int64))
    with encoder.inference():
        torch.testing.assert_close(encoder.encode(batch, "query")[1:], encoder.encode(alone, "query"))


@pytest.mark.parametrize("file", ["modeling_own.py", "configuration_own.py", "parts.py"])
def test_code_that_changed_is_other_code(own, tmp_path, file):
    digest = digest_asked_for(own)
    with open(own / file, "a") as stream:
        stream.write("# one more line\n")
    hn.allow_code(digest)
    assert digest_asked_for(own) != digest
    assert not (tmp_path / "mark").exists()


def test_files_that_are_not_loaded_do_not_count(own):
    digest = digest_asked_for(own)
    (own / "train.py").write_text("raise SystemExit")
    assert digest_asked_for(own) == digest


@pytest.mark.parametrize(
    "reference", ["other/model--modeling.Model", "/tmp/modeling.Model", "../modeling.Model", "absent.Model", 3]
)
def test_code_from_elsewhere_cannot_be_pinned(own, tmp_path, reference):
    hn.allow_code(digest_asked_for(own))
    config = json.loads((own / "config.json").read_text())
    config["auto_map"]["AutoModel"] = reference
    (own / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrustError, match=r"REMOTE_CODE.*is not in its folder"):
        load_encoder(str(own))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], "", COMMIT.upper()])
def test_only_what_cannot_move_is_a_revision(revision):
    with pytest.raises(SettingsError, match="BAD_SETTING: allow_code = "):
        hn.allow_code(revision)
    assert code.allowed_code() == ()


def test_a_saved_copy_keeps_the_code_and_its_digest(own, tmp_path, monkeypatch):
    digest = digest_asked_for(own)
    hn.allow_code(digest)
    encoder = load_encoder(str(own), pooling="mean")
    save_encoder(encoder, tmp_path / "saved")
    assert load_encoder(str(tmp_path / "saved")).digest() == encoder.digest()
    monkeypatch.setattr(code, "_allowed", set())
    assert digest_asked_for(tmp_path / "saved") == digest


def test_the_code_is_part_of_the_models_identity(own):
    hn.allow_code(digest_asked_for(own))
    before = load_encoder(str(own)).digest()
    with open(own / "parts.py", "a") as stream:
        stream.write("# the same, but who knows\n")
    hn.allow_code(digest_asked_for(own))
    assert load_encoder(str(own)).digest() != before


def test_a_type_that_is_known_runs_flat_only_with_transformers_own_code(collection, tmp_path):
    folder = Path(tiny_model(tmp_path / "bert", collection))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_bert_own.OwnBert"}
    (folder / "config.json").write_text(json.dumps(config))
    lines = "from transformers import BertModel\nclass OwnBert(BertModel):\n    pass\n"
    (folder / "modeling_bert_own.py").write_text(lines)
    hn.allow_code(digest_asked_for(folder))
    own, known = load_encoder(str(folder)), load_encoder(tiny_model(tmp_path / "known", collection))
    assert type(own.tower("query").transformer).__name__ == "OwnBert"
    assert own.tower("query").transformer.config._attn_implementation != "hardneg_packed"
    batch = TokenBatch(np.array([2, 7, 8, 3, 2, 9, 3], np.int32), np.array([0, 4, 7], np.int64))
    with own.inference(), known.inference():
        torch.testing.assert_close(own.encode(batch, "query"), known.encode(batch, "query"))


# ---------------------------------------------------------------- types that transformers has taken over

PUBLISHED = {
    "eurobert": ("EuroBert", "modeling_eurobert.EuroBertModel", {}),
    "nomic_bert": (
        "NomicBert",
        "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24, "prenorm": False, "rotary_emb_base": 1000},
    ),
}


@pytest.fixture(params=PUBLISHED)
def taken_over(request, collection, tmp_path):
    """The folder of a model that names code of its own, as it was published, and the same without the name."""
    name, reference, older = PUBLISHED[request.param]
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip("this version of transformers does not know the type")
    folder = Path(tiny_model(tmp_path / "model", collection))
    vocabulary = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    marks = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id"), 0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=vocabulary, max_position_embeddings=64, num_key_value_heads=2, **shape, **marks
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    change_config(folder, **older)
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    change_config(folder, auto_map={"AutoModel": reference})
    return folder, plain


def change_config(folder, *removed, **changed):
    config = json.loads((folder / "config.json").read_text()) | changed
    kept = {name: value for name, value in config.items() if name not in removed}
    (folder / "config.json").write_text(json.dumps(kept))


def bring_code(folder):
    """Put code into the folder of a EuroBERT that gives other vectors, and return its digest."""
    lines = """
from transformers import EuroBertModel as Theirs

class EuroBertModel(Theirs):
    def forward(self, *args, **named):
        out = super().forward(*args, **named)
        out.last_hidden_state = out.last_hidden_state.flip(-1)
        return out
"""
    (folder / "modeling_eurobert.py").write_text(lines)
    return code.digest_json({"modeling_eurobert.py": code.digest_file(folder / "modeling_eurobert.py")})


ONLY_EUROBERT = pytest.mark.parametrize("taken_over", ["eurobert"], indirect=True)
ONLY_NOMIC = pytest.mark.parametrize("taken_over", ["nomic_bert"], indirect=True)


def test_a_type_that_transformers_took_over_needs_no_code(taken_over, tmp_path, caplog):
    folder, plain = taken_over
    encoder = load_encoder(folder)
    assert encoder.code == []
    assert encoder.digest() == load_encoder(plain).digest()
    (said,) = [message for message in caplog.messages if "auto_map" in message]
    assert said.startswith(f"{folder} names code of its own (auto_map), which does not run")
    hn.allow_code(COMMIT)  # that of another model
    assert load_encoder(folder).code == []
    save_encoder(encoder, tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/config.json").read_text())
    assert "auto_map" not in saved
    assert load_encoder(tmp_path / "saved").digest() == encoder.digest()


@ONLY_EUROBERT
def test_its_code_runs_where_it_is_allowed_and_then_a_saved_copy_needs_it(taken_over, tmp_path, caplog):
    folder, _ = taken_over
    digest = bring_code(folder)
    stock = load_encoder(folder)
    assert caplog.messages[-1].endswith(f'; hn.allow_code("{digest}") runs it')
    hn.allow_code(digest)
    encoder = load_encoder(folder)
    assert encoder.code == [digest]
    assert encoder.digest() != stock.digest()
    save_encoder(encoder, tmp_path / "saved")
    code._allowed.clear()
    assert digest_asked_for(tmp_path / "saved") == digest
    hn.allow_code(digest)
    assert load_encoder(tmp_path / "saved").digest() == encoder.digest()


@ONLY_NOMIC
@pytest.mark.parametrize(
    "changed",
    [
        {"hidden_size": None},
        {"n_embd": 48},
        {"n_layer": 1},
        {"layer_norm_epsilon": 1e-5},
        {"rotary_emb_base": 10000},
        {"rotary_emb_fraction": 0.5},
        {"rotary_scaling_factor": 2},
        {"prenorm": True},
        {"causal": True},
        {"activation_function": "gelu"},
        {"qkv_proj_bias": True},
        {"num_experts": 8},
        {"hidden_act": "gelu"},
        {"is_causal": True},
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0}},
        {"rope_parameters": None, "rotary_emb_base": None},
        {"rope_parameters": None, "rope_theta": [1000.0]},
        {"rope_parameters": {"rope_theta": {}}, "rope_theta": 1000.0},
        {"rope_parameters": 3},
        {"n_embd": [16]},
        {"auto_map": {"AutoModel": "modeling_mine.Mine"}},
        {"auto_map": {"AutoModel": "someone/else--modeling_hf_nomic_bert.NomicBertModel"}},
        {"auto_map": {"AutoTokenizer": "modeling_hf_nomic_bert.NomicBertTokenizer"}},
        {"auto_map": ["modeling_hf_nomic_bert.NomicBertModel"]},
    ],
    ids=str,
)
def test_what_transformers_does_not_compute_is_not_read_without_the_code(taken_over, changed):
    folder, _ = taken_over
    change_config(folder, **changed)
    with pytest.raises(TrustError, match="REMOTE_CODE"):
        load_encoder(folder)


@ONLY_NOMIC
@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "max_position_embeddings"])
def test_names_that_are_missing_would_mean_transformers_own_values(taken_over, name):
    folder, _ = taken_over
    change_config(folder, name)
    with pytest.raises(TrustError, match="REMOTE_CODE"):
        load_encoder(folder)


def test_weights_that_only_the_code_would_use_are_not_left_out(taken_over):
    folder, _ = taken_over
    weights = load_file(folder / "model.safetensors")
    norm = next(name for name in weights if "layers.1." in name and "norm" in name)
    head = {"cls.predictions.bias": torch.zeros(3)}
    save_file(weights | head, folder / "model.safetensors", {"format": "pt"})
    assert load_encoder(folder).code == []
    extra = {norm.replace(norm.split("layers.1.")[1], "mlp.fc9.bias"): torch.zeros(3)}
    save_file(weights | extra, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrustError, match=r"REMOTE_CODE: .* has no place for 1 weights, first .*fc9.bias"):
        load_encoder(folder)


@ONLY_EUROBERT
@pytest.mark.parametrize("asked", [["evil.Tok", "evil.Tok"], {"AutoTokenizer": ["some/repo--evil.Tok", None]}])
def test_a_tokenizer_cannot_pose_as_such_a_model(taken_over, tmp_path, monkeypatch, asked):
    """transformers would ask on stdin whether to run it."""
    folder, _ = taken_over
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).write_text('')\n")
    file = folder / "tokenizer_config.json"
    posing = {"auto_map": asked, "tokenizer_class": "Tok"}
    posing |= json.loads((folder / "config.json").read_text()) | posing
    file.write_text(json.dumps(posing))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(TrustError, match="REMOTE_CODE"):
        load_encoder(folder)
    bring_code(folder)  # then the tokenizer's is the only code that is missing
    with pytest.raises(TrustError, match="REMOTE_CODE"):
        load_encoder(folder)
    assert not (tmp_path / "ran").exists()


def test_a_transformers_that_lacks_the_type_needs_the_code(taken_over, monkeypatch):
    from transformers.models.auto import configuration_auto

    monkeypatch.setattr(configuration_auto, "CONFIG_MAPPING_NAMES", {})
    with pytest.raises(TrustError, match="REMOTE_CODE"):
        load_encoder(taken_over[0])


# ---------------------------------------------------------------- kernels, and parts of models


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": "somebody/kernel"},
        {"_attn_implementation": "flash_attention_2"},
        {"attn_implementation": "paged|flash_attention_3"},
        {"attn_implementation": {"": "flash_attention_4"}},
        {"experts_implementation": "sonicmoe"},
        {"attn_implementation": None},
    ],
    ids=str,
)
def test_how_attention_computes_is_not_for_the_folder_to_say(collection, tmp_path, asked, monkeypatch):
    """With the package ``kernels``, transformers would fetch what some of these name."""
    from transformers.integrations import hub_kernels

    folder = Path(tiny_model(tmp_path / "bert", collection))
    own = load_encoder(folder)
    change_config(folder, **asked)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: pytest.fail("a kernel is fetched"))
    encoder = load_encoder(folder)
    assert (
        encoder.tower("query").transformer.config._attn_implementation
        == own.tower("query").transformer.config._attn_implementation
    )
    assert encoder.digest() == own.digest()


def test_parts_of_a_model_compute_attention_as_all_of_it():
    config = transformers.LlavaConfig(attn_implementation={"text_config": {"": "somebody/kernel"}})
    config.text_config._attn_implementation = "somebody/kernel"
    _choose_no_kernel(config)
    assert (config._attn_implementation, config.text_config._attn_implementation) == (None, None)


def test_a_part_of_a_model_cannot_ask_for_code(collection, tmp_path, monkeypatch):
    """transformers would ask on stdin whether to run it, and no revision could be named."""
    folder = Path(tiny_model(tmp_path / "bert", collection))
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).write_text('')\n")
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16, "image_size": 8}
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 1, "patch_size": 4}
    text = {"model_type": "trocr", "name_or_path": str(folder), "auto_map": {"AutoModel": "evil.M"}}
    change_config(folder, model_type="llava", vision_config=vision, text_config=text)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(TrustError, match=r"config.json: REMOTE_CODE: a part of the model asks"):
        load_encoder(folder)
    hn.allow_code("0" * 64)
    with pytest.raises(TrustError, match=r"config.json: REMOTE_CODE: a part of the model asks"):
        load_encoder(folder)
    assert not (tmp_path / "ran").exists()


def test_an_empty_map_asks_for_nothing(collection, tmp_path):
    folder = Path(tiny_model(tmp_path / "bert", collection))
    change_config(folder, auto_map={})
    assert load_encoder(folder).code == []


# ---------------------------------------------------------------- the hub


@pytest.fixture
def hub(own, tmp_path, monkeypatch):
    """A hub that gives this model at one commit, and notes what it was asked for."""
    asked = []

    def download(name, *, revision, allow_patterns, **_):
        asked.append(revision)
        if revision not in (None, COMMIT):
            raise OSError(f"404 {revision}")
        place = tmp_path / "hub" / name.replace("/", "--") / "snapshots" / COMMIT
        for file in own.rglob("*.*"):
            if any(file.match(pattern) for pattern in allow_patterns):
                (place / file.relative_to(own)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place / file.relative_to(own))
        return str(place)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_no_commit_is_named_for_code_that_lies_elsewhere(own, hub):
    """Allowing it would not help."""
    change_config(own, auto_map={"AutoModel": "other/model--modeling.Model"})
    with pytest.raises(
        TrustError, match=r"REMOTE_CODE: the code .*\(other/model--modeling.Model\) is not in its folder"
    ):
        load_encoder("somebody/own")


def test_a_model_of_the_hub_is_pinned_by_its_commit(hub, tmp_path):
    with pytest.raises(TrustError, match=rf'hn.allow_code\("{COMMIT}"\)'):
        load_encoder("somebody/own")
    assert not list((tmp_path / "hub").rglob("*.py"))
    hn.allow_code("f" * 40)  # of another model
    with pytest.raises(TrustError, match=rf'hn.allow_code\("{COMMIT}"\)'):
        load_encoder("somebody/own")
    assert not (tmp_path / "mark").exists()
    hn.allow_code(COMMIT)
    assert load_encoder("somebody/own").code
    assert hub == [None, "f" * 40, None, COMMIT]


@pytest.mark.parametrize("towers", [1, 2])
def test_a_saved_model_of_the_hub_is_pinned_by_its_commit_too(own, hub, tmp_path, towers):
    """Its manifest names the code, and the hub is not asked for code that nobody allowed."""
    hn.allow_code(digest_asked_for(own))
    save_encoder(load_encoder(*[own] * towers), tmp_path / "saved")
    code._allowed.clear()
    shutil.rmtree(own)
    (tmp_path / "saved").rename(own)
    with pytest.raises(TrustError, match=rf'hn.allow_code\("{COMMIT}"\)'):
        load_encoder("somebody/own")
    hn.allow_code(COMMIT)
    assert load_encoder("somebody/own").code


def test_code_that_a_saved_model_lost_is_called_missing(own, tmp_path):
    hn.allow_code(digest_asked_for(own))
    save_encoder(load_encoder(own), tmp_path / "saved")
    lost = next((tmp_path / "saved").rglob("modeling_own.py"))
    lost.unlink()
    with pytest.raises(ArtifactError, match=r"modeling_own\.py: MISSING_FILE"):
        load_encoder(tmp_path / "saved")


# ---------------------------------------------------------------- commands


def test_commands_take_the_revision(own, collection, tmp_path, hardneg):
    digest = digest_asked_for(own)
    encode = ("encode", "--data", collection.path, "--model", own, "--device", "cpu", "--threads", "1")
    status, _, said = hardneg(*encode, "--out", tmp_path / "emb")
    assert (status, said.count("\n")) == (9, 1)
    assert f"--allow-code {digest}" in said
    assert hardneg(*encode, "--out", tmp_path / "emb", "--allow-code", "main")[0] == 2
    assert not (tmp_path / "mark").exists()
    assert hardneg(*encode, "--out", tmp_path / "emb", "--allow-code", digest)[0] == 0


def test_an_experiment_records_it_and_reads_its_own_models(own, collection, tmp_path, hardneg):
    digest = digest_asked_for(own)
    changes = SETTINGS | {"episodes": 2, "steps": 4, "queries_per_step": 4, "measures": "RR@10"}
    words = [word for name, value in changes.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    train = ("train", "ance-tele", "--data", collection.path, "--model", own, "--out", tmp_path / "exp", *words)
    train += ("--device", "cpu", "--threads", "1")
    assert hardneg(*train)[0] == 9
    status, _, said = hardneg(*train, "--allow-code", digest)
    assert status == 0, said
    assert json.loads((tmp_path / "exp/settings.json").read_text())["inputs"]["code"] == digest
    code._allowed.clear()
    search = ("search", "--data", collection.path, "--model", tmp_path / "exp/model", "--device", "cpu")
    status, _, said = hardneg(*search, "--out", tmp_path / "run")
    assert status == 9
    assert f"--allow-code {digest}" in said
    assert hardneg(*search, "--out", tmp_path / "run", "--allow-code", digest)[0] == 0
