"""AR2's losses, computed one number at a time as in the formulas; the positive is the first of each list."""

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(values):
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def slow_nll(ranker):
    return -math.log(softmax(ranker)[0])


def slow_log_loss(ranker):
    refused = [math.log(1 - sigmoid(score)) for score in ranker[1:]]
    return -(math.log(sigmoid(ranker[0])) + sum(refused) / max(len(refused), 1))


def slow_p_theta(scores, ranker):
    p = softmax(scores[1:])
    return sum(p[i] * math.log(sigmoid(ranker[0] - ranker[1 + i])) * math.log(p[i]) for i in range(len(p)))


def slow_expected(scores, ranker):
    """The loss of Eq. 9, whose gradient is that of Eq. 10."""
    p = softmax(scores[1:])
    return sum(p[i] * math.log(sigmoid(ranker[0] - ranker[1 + i])) for i in range(len(p)))


def slow_reference(scores, ranker):
    p = softmax(scores)
    return sum(math.log(sigmoid(ranker[0] - ranker[i])) * math.log(p[i]) for i in range(len(p)))


def slow_irgan(scores, ranker):
    p = softmax(scores[1:])
    return sum(p[i] * math.log(1 - sigmoid(ranker[1 + i])) for i in range(len(p)))


def slow_distillation(scores, ranker, temperature):
    p, q = softmax(scores), softmax([score / temperature for score in ranker])
    return -sum(b * math.log(a) for a, b in zip(p, q, strict=True))


def slow_entropy(scores):
    return -sum(p * math.log(p) for p in softmax(scores))


def slope(function, scores, k, step=1e-5):
    """The derivative of a function of a list by its k-th number, as a finite difference."""
    up, down = list(scores), list(scores)
    up[k] += step
    down[k] -= step
    return (function(up) - function(down)) / (2 * step)
