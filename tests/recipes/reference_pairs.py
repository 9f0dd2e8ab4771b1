"""Losses of pairs once more, one negative at a time."""

import torch
from reference_tele import SlowTele


class SlowPairs(SlowTele):
    """A pair loss, one negative at a time."""

    pair, only_hardest = None, False

    def of_query(self, target, logits):
        if self.only_hardest:
            logits = [max(logits, key=torch.Tensor.item)]
        return sum(self.pair(target, one) for one in logits) / len(logits)


def nll(positive, negative):
    return -torch.log(torch.exp(positive) / (torch.exp(positive) + torch.exp(negative)))


def bce(positive, negative):
    return -torch.log(torch.sigmoid(positive)) - torch.log(torch.sigmoid(-negative))


def hinge(positive, negative):
    return max(0 * positive, 0.7 - positive + negative)
