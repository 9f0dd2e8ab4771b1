"""AR2's steps once more: texts read one by one by plain transformers, losses by loops, torch's own AdamW."""

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer


class SlowGame:
    """Both models, and a step of each."""

    def __init__(
        self, collection, train, retriever, ranker, *, longest, balance=0.5, game="ar2", weighting="p_theta"
    ):
        self.collection, self.longest = collection, longest
        self.balance, self.game, self.weighting = balance, game, weighting
        self.known = {int(row): set(train.of(i).tolist()) for i, row in enumerate(train.query_rows)}
        self.retriever = AutoModel.from_pretrained(retriever, attn_implementation="eager", add_pooling_layer=False)
        self.ranker = AutoModelForSequenceClassification.from_pretrained(ranker, attn_implementation="eager")
        self.tokenizer = AutoTokenizer.from_pretrained(retriever)
        self.optimizers = {}
        for model in (self.retriever, self.ranker):
            self.optimizers[model.eval()] = torch.optim.AdamW(model.parameters(), weight_decay=0.0)

    def begin(self, name):
        """Begin the iterations with a fresh optimiser of a model."""
        model = self.ranker if name == "ranker" else self.retriever
        self.optimizers[model] = torch.optim.AdamW(model.parameters(), weight_decay=0.0)

    # ------------------------------------------------------------ texts

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def query(self, row):
        return self.ids(self.collection.query_texts.take([row])[0])

    def passage(self, row):
        title, text = (column.take([row])[0] for column in (self.collection.titles, self.collection.texts))
        return [*self.ids(title), self.tokenizer.sep_token_id, *self.ids(text)] if title else self.ids(text)

    def vector(self, ids):
        ids = [self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id]
        return self.retriever(input_ids=torch.tensor([ids])).last_hidden_state[0, 0]

    def pair(self, query, passage):
        first = [self.tokenizer.cls_token_id, *self.query(query), self.tokenizer.sep_token_id]
        second = [*self.passage(passage)[: self.longest - len(first) - 1], self.tokenizer.sep_token_id]
        types = [0] * len(first) + [1] * len(second)
        found = self.ranker(input_ids=torch.tensor([first + second]), token_type_ids=torch.tensor([types]))
        return found.logits[0, 0]

    # ------------------------------------------------------------ lists

    def is_known(self, query, passage):
        text = self.collection.texts.take([passage])[0]
        title = self.collection.titles.take([passage])[0]
        return any(
            (self.collection.titles.take([row])[0], self.collection.texts.take([row])[0]) == (title, text)
            for row in self.known[query]
        )

    def lists(self, batch):
        """Of each query, its positive and the negatives that are none of its known positives."""
        for query, rows in zip(batch.query_rows.tolist(), batch.passage_rows.tolist(), strict=True):
            yield query, [rows[0], *(row for row in rows[1:] if not self.is_known(query, row))]

    def ranker_loss(self, batch):
        losses = []
        for query, rows in self.lists(batch):
            scores = torch.stack([self.pair(query, row) for row in rows])
            if self.game == "irgan":
                refused = sum(torch.log(1 - torch.sigmoid(score)) for score in scores[1:])
                losses.append(-torch.log(torch.sigmoid(scores[0])) - refused / (len(scores) - 1))
            else:
                losses.append(-torch.log(torch.exp(scores[0]) / torch.exp(scores).sum()))
        return sum(losses) / len(losses)

    def retriever_loss(self, batch):
        losses = []
        for query, rows in self.lists(batch):
            vector = self.vector(self.query(query))
            scores = torch.stack([vector @ self.vector(self.passage(row)) for row in rows])
            with torch.no_grad():
                wanted = torch.stack([self.pair(query, row) for row in rows])
            against, others = self.against(scores, wanted), towards(scores, wanted)
            losses.append(self.balance * against + (1 - self.balance) * others)
        return sum(losses) / len(losses)

    def against(self, scores, wanted):
        own = torch.softmax(scores[1:], 0)
        if self.game == "irgan":
            return (own * torch.log(1 - torch.sigmoid(wanted[1:]))).sum()
        preferred = torch.log(torch.sigmoid(wanted[0] - wanted))
        if self.weighting == "p_theta":
            return (own.detach() * preferred[1:] * torch.log(own)).sum()
        return 8 * (preferred * torch.log(torch.softmax(scores, 0))).sum()  # of a batch of 8, summed

    # ------------------------------------------------------------ steps

    def step(self, name, batch, rate):
        """The loss and the norm of the gradient; the model has learned."""
        model = self.ranker if name == "ranker" else self.retriever
        loss = self.ranker_loss(batch) if name == "ranker" else self.retriever_loss(batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in self.optimizers[model].param_groups:
            group["lr"] = rate
        self.optimizers[model].step()
        model.zero_grad()
        return loss.item(), norm.item()


def towards(scores, wanted):
    return -(torch.softmax(wanted, 0) * torch.log(torch.softmax(scores, 0))).sum()
