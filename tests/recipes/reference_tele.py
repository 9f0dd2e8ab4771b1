"""ANCE-Tele's training steps once more, as slowly as they read: one text at a time, one column at a time."""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

HEAD = ("embeddingHead.weight", "embeddingHead.bias", "norm.weight", "norm.bias")  # of a released checkpoint


class SlowEncoder:
    """A plain transformers model and tokenizer; every text is encoded alone, without padding.

    With ``head``: the linear layer and the layer norm of ANCE's released checkpoints, from the same file.
    """

    def __init__(self, folder, *, pooling="cls", normalize=False, max_length=128, head=False):
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.pooling, self.normalize, self.max_length = pooling, normalize, max_length
        self.head = None
        if head:
            stored = load_file(Path(folder) / "model.safetensors")
            self.head = [torch.nn.Parameter(stored[name]) for name in HEAD]

    def encode(self, *parts):
        """The vector of one or two texts, joined as [CLS] one [SEP] two [SEP]."""
        ids = [self.tokenizer.cls_token_id]
        for part in parts:
            ids += [*self.tokenizer.encode(part, add_special_tokens=False), self.tokenizer.sep_token_id]
        return self.encode_ids(ids)

    def encode_ids(self, ids):
        """The vector of one sequence, special tokens included."""
        assert len(ids) <= self.max_length
        states = self.model(
            input_ids=torch.tensor([ids]), token_type_ids=torch.zeros(1, len(ids), dtype=torch.long)
        ).last_hidden_state[0]
        vector = states[0] if self.pooling == "cls" else states.mean(0)
        if self.head is not None:
            weight, bias, gain, shift = self.head
            vector = weight @ vector + bias
            spread = (vector - vector.mean()).square().mean()
            vector = (vector - vector.mean()) / (spread + 1e-5).sqrt() * gain + shift
        return vector / vector.norm() if self.normalize else vector

    def parameters(self):
        return [*self.model.parameters(), *(self.head or [])]


class SlowTele:
    """The contrastive loss of a step, and the steps that follow from it."""

    def __init__(self, collection, train, query, passage=None, *, in_batch=True, mask=True, scale=1.0):
        self.collection, self.query, self.passage = collection, query, passage or query
        self.in_batch, self.mask, self.scale = in_batch, mask, scale
        self.positives = {int(row): set(train.of(i).tolist()) for i, row in enumerate(train.query_rows)}
        self.masked = 0  # columns that the mask took out, beside the queries' own positives
        self.moments = {}
        self.step = 0

    def text(self, row):
        return self.collection.texts.take([row])[0]

    def encode_passage(self, row):
        title = self.collection.titles.take([row])[0]
        return self.passage.encode(title, self.text(row)) if title else self.passage.encode(self.text(row))

    def loss(self, parts):
        """Mean over the queries of micro-batches, each of query rows [b] and passage rows [b][1 + N]."""
        losses = [self.of_query(target, logits) for target, logits in self.logits(parts)]
        return torch.stack(losses).sum() / len(losses)

    def of_query(self, target, logits):
        """Cross-entropy of the positive against all columns, the positive's among them."""
        return torch.logsumexp(torch.stack([target, *logits]), 0) - target

    def logits(self, parts):
        """Of each query, the positive's logit and those of its negatives."""
        for queries, groups in parts:
            vectors = {row: self.encode_passage(row) for group in groups for row in group}
            for i, query in enumerate(queries):
                vector = self.query.encode(self.collection.query_texts.take([query])[0])
                target = self.scale * self.score(vector, vectors[groups[i][0]])
                logits = []
                for j, group in enumerate(groups):
                    for k, row in enumerate(group):
                        if (j, k) != (i, 0) and self.is_negative(query, row, same=i == j):
                            logits.append(self.scale * self.score(vector, vectors[row]))
                yield target, logits

    def score(self, vector, passage):
        return vector @ passage

    def is_negative(self, query, row, *, same):
        if not same and not self.in_batch:
            return False
        known = self.positives[query]
        if self.mask and (row in known or self.text(row) in {self.text(positive) for positive in known}):
            self.masked += 1
            return False
        return True

    def parameters(self):
        encoders = [self.query] if self.passage is self.query else [self.query, self.passage]
        return [p for encoder in encoders for p in encoder.parameters()]

    def train(self, parts, *, rate, clip=1.0, weight_decay=0.0):
        """One step of the optimiser; the loss before it and the norm of the gradient before clipping."""
        parameters = self.parameters()
        for p in parameters:
            p.grad = None
        loss = self.loss(parts)
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None))
        self.step += 1
        with torch.no_grad():
            for number, p in enumerate(parameters):
                if p.grad is not None:
                    self.update(number, p, p.grad * min(1.0, clip / norm), rate, weight_decay)
        return loss.item(), norm

    def update(self, number, p, g, rate, weight_decay):
        first, second = self.moments.get(number, (0.0, 0.0))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        self.moments[number] = first, second
        if p.ndim >= 2:
            p -= rate * weight_decay * p
        p -= rate * (first / (1 - 0.9**self.step)) / ((second / (1 - 0.999**self.step)).sqrt() + 1e-8)


class SlowLamb:
    """In the place of a slow step's AdamW: LAMB as ANCE and STAR run it, one tensor at a time."""

    def update(self, number, p, g, rate, weight_decay):
        first, second = self.moments.get(number, (0.0, 0.0))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        self.moments[number] = first, second
        change = first / (second.sqrt() + 1e-8)
        if p.ndim >= 2:
            change = change + weight_decay * p
        size, length = min(float(p.norm()), 10.0), float(change.norm())
        p -= rate * (size / length if size > 0 and length > 0 else 1.0) * change
