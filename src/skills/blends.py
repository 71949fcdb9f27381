"""Kernels of agents that are made of other agents: what a mixture would do, how far a student is from its teacher."""

from __future__ import annotations

import numpy as np

from rl.kernels import kernel, part

LEAST = 1e-30  # a probability whose logarithm is taken


@part
def _softmax(logits, out):  # type: ignore[no-untyped-def]
    """Probabilities, written to `out`; both have as many as `out` has. Returns nothing."""
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
def softmax(logits, out):  # type: ignore[no-untyped-def]
    """Writes probabilities of the first logits of each row, float32 [N, > A] to float32 [N, A]."""
    for n in range(len(out)):
        _softmax(logits[n], out[n])


@part
def _mean(weights, opinions, out):  # type: ignore[no-untyped-def]
    """Mean of opinions [K, A] to out [A]."""
    for a in range(len(out)):
        p = 0.0
        for k in range(len(weights)):
            p += weights[k] * opinions[k, a]
        out[a] = max(p, LEAST)


@kernel
def blend(outputs, opinions, weights, out):  # type: ignore[no-untyped-def]
    """What a mixture would do.

    Args:
        outputs: The gate's logits of experts and its value, float32 [N, K + 1].
        opinions: Probabilities of actions, float32 [N, K, A].
        weights: The gate's probabilities, written, float32 [N, K].
        out: Log-probabilities of actions and the value, written, float32 [N, A + 1].
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
def policy(outputs, opinions, actions, which, log_probs, entropies):  # type: ignore[no-untyped-def]
    """Log-probabilities of actions under the mixture, and its entropies; logits become the gate's probabilities.

    Args:
        outputs: The gate's logits and value, float32 [T, S, K + 1].
        opinions: Probabilities of actions, float32 [T, N, K, A].
        actions: int64 [T, N].
        which: Their columns, int64 [S].
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
def policy_backward(outputs, opinions, actions, which, of_log_probs, of_entropy, of_values):  # type: ignore[no-untyped-def]
    """Gradients with respect to the gate's logits and value, in place of `outputs`, which `policy` has changed.

    The logarithm of p = sum of g_k p_k has the derivative g_k (p_k - p) / p with respect to the logit of g_k.

    Args:
        of_log_probs, of_values: float32 [T, S].
        of_entropy: Of each entropy, scalar.
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
                row[k] = gate[k] * (of_log_probs[t, s] * by_log_prob + of_entropy * by_entropy)
            row[len(gate)] = of_values[t, s]


@kernel
def divergence(outputs, labels, which, value_coef, statistics):  # type: ignore[no-untyped-def]
    """The loss of a student, whose outputs become its gradient.

    Args:
        outputs: Logits and value, float32 [T, S, A + 1].
        labels: The teacher's, float32 [T, N, A + 1].
        which: Columns of the labels, int64 [S].
        value_coef: Weight of half the squared error of the value.
        statistics: Written, float32 [3]: mean KL divergence from the teacher's distribution to the student's [nats];
            half the mean squared error of the value; share of states in which both would do the same, greedily.
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
