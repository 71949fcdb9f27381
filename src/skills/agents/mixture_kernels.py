"""Compiled kernels of the mixture's policy and of the distillation loss.

"Equal to" gives the plain numpy or torch lines of a kernel, which tests compare with it.
"""

from __future__ import annotations

import numpy as np

from rl.kernels import kernel, part

LEAST = 1e-30  # lower bound of probabilities before a logarithm


@part
def _softmax(logits, out):
    """Write softmax(logits[: len(out)])."""
    best = logits[0]
    for i in range(1, len(out)):
        best = max(best, logits[i])
    total = 0.0
    for i in range(len(out)):
        out[i] = np.exp(np.float64(logits[i] - best))
        total += out[i]
    for i in range(len(out)):
        out[i] /= total


@kernel
def softmax(logits, out):
    """Write probabilities, float32 [N, A], from the first A logits of every row. Equal to: softmax(logits[:, :A])."""
    for n in range(len(out)):
        _softmax(logits[n], out[n])


@part
def _mean(weights, opinions, out):
    """Write the weighted mean of probabilities [K, A] to out [A]. Equal to: np.maximum(weights @ opinions, LEAST)."""
    for a in range(len(out)):
        p = 0.0
        for k in range(len(weights)):
            p += weights[k] * opinions[k, a]
        out[a] = max(p, LEAST)


@kernel
def mix_policies(outputs, opinions, weights, out):
    """Mix the experts' policies.

    Equal to: g = softmax(gate's logits); log p(a) = log(sum over k of g_k p_k(a)), with the gate's value

    Args:
        outputs: The gate's logits and value, float32 [N, K + 1].
        opinions: The experts' action probabilities p_k, float32 [N, K, A].
        weights: g, written, float32 [N, K].
        out: log p and the value, written, float32 [N, A + 1].
    """
    experts, actions = opinions.shape[1:]
    gate, p = np.empty(experts), np.empty(actions)
    for n in range(len(outputs)):
        _softmax(outputs[n], gate)
        _mean(gate, opinions[n], p)
        for k in range(experts):
            weights[n, k] = gate[k]
        for a in range(actions):
            out[n, a] = np.log(p[a])
        out[n, actions] = outputs[n, experts]


@kernel
def log_probs_and_entropies(outputs, opinions, actions, which, log_probs, entropies):
    """Write log p(a_t | s_t) and the entropy of the mixture p; the gate's logits become its probabilities g.

    Equal to: p = sum over k of g_k p_k; log_probs = log p[actions[:, which]]; entropies = -(p * log p).sum(-1)

    Args:
        outputs: The gate's logits and value, float32 [T, S, K + 1].
        opinions: The experts' action probabilities p_k, float32 [T, N, K, A].
        actions: int64 [T, N].
        which: The selected columns, int64 [S].
        log_probs, entropies: Written, float32 [T, S].
    """
    gate, p = np.empty(opinions.shape[2]), np.empty(opinions.shape[3])
    for t in range(outputs.shape[0]):
        for s in range(outputs.shape[1]):
            _softmax(outputs[t, s], gate)
            _mean(gate, opinions[t, which[s]], p)
            for k in range(len(gate)):
                outputs[t, s, k] = gate[k]
            entropy = 0.0
            for a in range(len(p)):
                entropy -= p[a] * np.log(p[a])
            log_probs[t, s], entropies[t, s] = np.log(p[actions[t, which[s]]]), entropy


@kernel
def log_probs_and_entropies_backward(
    outputs, opinions, actions, which, grad_log_probs, grad_entropy, grad_values
):
    """Write the gradient of the loss by the gate's logits and value into `outputs`, which hold its probabilities g.

    Equal to: d log p(a) / d logit_k = g_k (p_k(a) - p(a)) / p(a);
    d entropy / d logit_k = -g_k sum_a log p(a) (p_k(a) - p(a))

    Args:
        grad_log_probs, grad_values: Gradients by log-probabilities and values, float32 [T, S].
        grad_entropy: Gradient by any of the entropies, scalar.
    """
    gate, p = np.empty(opinions.shape[2]), np.empty(opinions.shape[3])
    for t in range(outputs.shape[0]):
        for s in range(outputs.shape[1]):
            row, opinion, action = outputs[t, s], opinions[t, which[s]], actions[t, which[s]]
            for k in range(len(gate)):
                gate[k] = row[k]
            _mean(gate, opinion, p)
            for k in range(len(gate)):
                by_entropy = 0.0
                for a in range(len(p)):
                    by_entropy -= np.log(p[a]) * (opinion[k, a] - p[a])
                by_log_prob = (opinion[k, action] - p[action]) / p[action]
                row[k] = gate[k] * (grad_log_probs[t, s] * by_log_prob + grad_entropy * by_entropy)
            row[len(gate)] = grad_values[t, s]


@kernel
def distillation_loss(outputs, labels, which, value_coef, statistics):
    """Write the statistics of the distillation loss; the student's outputs become the loss's gradient.

    Equal to: loss = mean KL(teacher || student) + value_coef * mean (V_student - V_teacher)^2 / 2

    Args:
        outputs: The student's logits and value, float32 [T, S, A + 1].
        labels: The teacher's, float32 [T, N, A + 1].
        which: The selected columns of the labels, int64 [S].
        value_coef: Weight of the value's error.
        statistics: Written, float32 [3]: mean KL divergence [nats]; half the mean squared error of the value; share of
            states in which both have the same most probable action.
    """
    count, size = outputs.shape[2] - 1, outputs.shape[0] * outputs.shape[1]
    divergences, errors, same = 0.0, 0.0, 0
    for t in range(outputs.shape[0]):
        for s in range(outputs.shape[1]):
            row, label = outputs[t, s], labels[t, which[s]]
            best, wanted = 0, 0
            for a in range(count):
                if row[a] > row[best]:
                    best = a
                if label[a] > label[wanted]:
                    wanted = a
            same += best == wanted
            top, highest = np.float64(row[best]), np.float64(label[wanted])
            total, given = 0.0, 0.0
            for a in range(count):
                total += np.exp(row[a] - top)
                given += np.exp(label[a] - highest)
            total, given = np.log(total) + top, np.log(given) + highest
            for a in range(count):
                p = np.exp(label[a] - given)
                divergences += p * ((label[a] - given) - (row[a] - total))
                row[a] = (np.exp(row[a] - total) - p) / size
            error = np.float64(row[count]) - label[count]
            errors += 0.5 * error * error
            row[count] = value_coef * error / size
    statistics[0], statistics[1], statistics[2] = divergences / size, errors / size, same / size
