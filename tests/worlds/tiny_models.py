"""Tiny models for tests, made on the spot: nothing is downloaded and nothing is trained but a tokenizer."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

VOCABULARY = 1000
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "initializer_range": 0.1,  # large enough that vectors depend on the context
}


def tiny_bert(folder: Path, texts: list[str], *, seed: int = 0) -> Path:
    """A random 2-layer BERT, 64 wide, with a WordPiece tokenizer of ``texts``, as a Hugging Face folder."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=512, pad_token_id=0, **SHAPE
    )
    return _save(folder, BertModel, config, tokenizer, names, seed)


def tiny_roberta(folder: Path, texts: list[str], *, seed: int = 0, **changes) -> Path:
    """A random 2-layer RoBERTa, 64 wide, with a byte-level BPE tokenizer of ``texts``, likewise."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), special, strict=True))
    names |= {"bos_token": "<s>", "eos_token": "</s>"}
    config = RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=514, pad_token_id=1, **SHAPE, **changes
    )
    return _save(folder, RobertaModel, config, tokenizer, names, seed)


def _save(folder, kind, config, tokenizer, names, seed):
    folder = Path(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)
    wrapped.save_pretrained(folder)
    return folder
