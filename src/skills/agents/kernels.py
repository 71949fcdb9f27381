"""Compiled kernels of the network: cell look-up, GRU, sampling of actions and the policy's gradient.

Matrix products are torch's. Everything between them is compiled here, in one pass over the data, without the
interpreter's lock, so that threads run in parallel. "Equal to" gives the plain numpy or torch lines of a kernel, which
tests compare with it. Sigmoid and tanh are rational functions that compile to vector instructions.
"""

from __future__ import annotations

import numpy as np

from rl.kernels import fused_kernel, fused_part, kernel, part
from skills.levels.codes import DOOR, KEY, LOCKED, VIEW

AREA = VIEW * VIEW
FITS = 4  # state of a key whose locked door is known, and of a locked door whose key is in the hand
CELL_SIZES = (11, 6, FITS + 1)  # values of a cell's type, colour and state, minigrid's and `FITS`
COLOUR_VALUES, STATE_VALUES = CELL_SIZES[1:]
CELLS = np.array(
    [
        cell
        for cell in np.ndindex(CELL_SIZES)
        if cell[0] == DOOR or cell[2] == 0 or (cell[0] == KEY and cell[2] == FITS)
    ],
    np.int64,
)
"""All cells that can be observed, one per row: type, colour, state. Only doors and keys have a state."""
_ROW = np.full(CELL_SIZES, -1, np.int64)
_ROW[tuple(CELLS.T)] = np.arange(len(CELLS))
_ROW = np.where(_ROW < 0, _ROW[..., :1], _ROW).ravel()
_HAND = 3 * (VIEW * (VIEW // 2) + VIEW - 1)  # index of the carried object in a view

_f = np.float32
# Minimax rational function of odd degree 13 over even degree 6, as in Eigen's `ptanh`; error below 4e-7.
_REACH = _f(7.90531110763549805)
_A1, _A3, _A5 = _f(4.89352455891786e-03), _f(6.37261928875436e-04), _f(1.48572235717979e-05)
_A7, _A9 = _f(5.12229709037114e-08), _f(-8.60467152213735e-11)
_A11, _A13 = _f(2.00018790482477e-13), _f(-2.76076847742355e-16)
_B0, _B2 = _f(4.89352518554385e-03), _f(2.26843463243900e-03)
_B4, _B6 = _f(1.18534705686654e-04), _f(1.19825839466702e-06)
_HALF, _ONE, _ZERO = _f(0.5), _f(1), _f(0)


@fused_part
def tanh(x):
    """Return tanh of a float32. Equal to: np.tanh(x)."""
    x = _REACH if x > _REACH else x
    x = -_REACH if x < -_REACH else x
    s = x * x
    top = _A13 * s + _A11
    top = top * s + _A9
    top = top * s + _A7
    top = top * s + _A5
    top = top * s + _A3
    top = top * s + _A1
    bottom = _B6 * s + _B4
    bottom = bottom * s + _B2
    bottom = bottom * s + _B0
    return x * top / bottom


@fused_part
def sigmoid(x):
    """Return the logistic function of a float32. Equal to: 1 / (1 + np.exp(-x))."""
    return _HALF + _HALF * tanh(_HALF * x)


@kernel
def known_locks(images, which, begins, known, lasting, out):
    """Write the colours of locked doors as bit sets: of the doors in view, or of all that the episode has shown.

    Equal to, per step: locks = (locks of the step before - doors in view that are not locked) | locked doors in view

    Args:
        images: Type, colour and state of every cell, uint8 [T, N, 147].
        which: The selected environments, int64 [S].
        begins: Whether an episode begins, bool [T, N].
        known: Locks known before the first step, float32 [N].
        lasting: Whether a lock stays known until its door is in view unlocked, or the episode ends.
        out: Written, int64 [T, S].
    """
    for s in range(len(which)):
        locks = np.int64(known[which[s]])
        for t in range(len(images)):
            image, locked, others = images[t, which[s]], 0, 0
            if not lasting or begins[t, which[s]]:
                locks = 0
            for i in range(AREA):
                if image[3 * i] == DOOR:
                    colour = 1 << np.int64(image[3 * i + 1])
                    if image[3 * i + 2] == LOCKED:
                        locked |= colour
                    else:
                        others |= colour
            locks = (locks & ~others) | locked
            out[t, s] = locks


@part
def _row(image, i, locks):
    """Return the row in `CELLS` of a cell of a view."""
    kind, colour, state = np.int64(image[3 * i]), np.int64(image[3 * i + 1]), image[3 * i + 2]
    if kind == KEY:
        state = FITS if locks >> colour & 1 else 0
    elif kind == DOOR and state == LOCKED and image[_HAND] == KEY and image[_HAND + 1] == colour:
        state = FITS
    return _ROW[(kind * COLOUR_VALUES + colour) * STATE_VALUES + state]


@kernel
def embed_cells(images, which, rows, locks, tables, out):
    """Write the embeddings of all cells of the views.

    Equal to: tables[rows[:, which, None], cell_rows(images[:, which], locks)].reshape(T, S, 49 * C)

    Args:
        images: Type, colour and state of every cell, uint8 [T, N, 147].
        which: The selected environments, int64 [S].
        rows: Row of the mission in `tables`, int64 [T, N].
        locks: Output of `known_locks`, int64 [T, S].
        tables: Embedding of all `CELLS` under every mission, float32 [M, len(CELLS), C].
        out: Written, float32 [T, S, 49 C].
    """
    width = tables.shape[2]
    for t in range(len(images)):
        for s in range(len(which)):
            image, table, written = images[t, which[s]], tables[rows[t, which[s]]], out[t, s]
            for i in range(AREA):
                row = _row(image, i, locks[t, s])
                for c in range(width):
                    written[i * width + c] = table[row, c]


@kernel
def embed_cells_backward(images, which, rows, locks, grad_out, grad_tables):
    """Add the gradient of `embed_cells`' output, float32 [T, S, 49 C], to the gradient of its tables."""
    width = grad_tables.shape[2]
    for t in range(len(images)):
        for s in range(len(which)):
            image, table, given = (
                images[t, which[s]],
                grad_tables[rows[t, which[s]]],
                grad_out[t, s],
            )
            for i in range(AREA):
                row = _row(image, i, locks[t, s])
                for c in range(width):
                    table[row, c] += given[i * width + c]


@kernel
def add_bias_relu(x, directions, rows, which, direction_bias, mission_bias):
    """Add a bias by direction and a bias by mission to x, float32 [T, S, H], and apply ReLU, in place.

    Equal to: x[:] = np.maximum(0, x + direction_bias[directions[:, which]] + mission_bias[rows[:, which]])
    """
    for t in range(x.shape[0]):
        for s in range(x.shape[1]):
            first, second = direction_bias[directions[t, which[s]]], mission_bias[rows[t, which[s]]]
            for i in range(x.shape[2]):
                value = x[t, s, i] + first[i] + second[i]
                x[t, s, i] = value if value > _ZERO else _ZERO


@kernel
def bias_relu_backward(x, grad_x, directions, rows, which, grad_direction, grad_mission):
    """Turn the gradient of `add_bias_relu`'s output into its input's, in place, and add to the biases' gradients."""
    for t in range(x.shape[0]):
        for s in range(x.shape[1]):
            first, second = grad_direction[directions[t, which[s]]], grad_mission[rows[t, which[s]]]
            for i in range(x.shape[2]):
                value = grad_x[t, s, i] if x[t, s, i] > _ZERO else _ZERO
                grad_x[t, s, i] = value
                first[i] += value
                second[i] += value


@fused_kernel
def gru(gates, recurrent, bias, before, after):
    """Apply one step of a gated recurrent unit (Cho et al. 2014), in the form of `torch.nn.GRUCell`.

    Equal to, with x, h the thirds of `gates` and `recurrent`:
        r = sigmoid(x_r + h_r); z = sigmoid(x_z + h_z); n = tanh(x_n + r (h_n + bias)); after = (1 - z) n + z before

    Args:
        gates: W_inner y + b, float32 [S, 3 G]; becomes r, z, n.
        recurrent: W_memory h, float32 [S, 3 G]; the last third becomes h_n + bias.
        bias: Bias of h_n, float32 [G].
        before: Hidden state h, float32 [S, G].
        after: Next hidden state, written.
    """
    size = before.shape[1]
    for s in range(len(before)):
        gate, given = gates[s], recurrent[s]
        for i in range(2 * size):
            gate[i] = sigmoid(gate[i] + given[i])
        for i in range(size):
            given[2 * size + i] += bias[i]
        for i in range(size):
            new = tanh(gate[2 * size + i] + gate[i] * given[2 * size + i])
            gate[2 * size + i] = new
            after[s, i] = new + gate[size + i] * (before[s, i] - new)


@fused_kernel
def gru_backward(gates, recurrent, before, grad_after, grad_before):
    """Turn `gates` and `recurrent` into their gradients (of `gru`'s inputs), for one step.

    Args:
        gates, recurrent, before: As `gru` left them.
        grad_after: Gradient of the next hidden state, float32 [S, G].
        grad_before: Gradient of the hidden state on the direct path (z before), written.
    """
    size = before.shape[1]
    for s in range(len(before)):
        gate, given = gates[s], recurrent[s]
        for i in range(size):
            reset, update, new = gate[i], gate[size + i], gate[2 * size + i]
            delta, hidden = grad_after[s, i], given[2 * size + i]
            by_new = delta * (_ONE - update) * (_ONE - new * new)
            by_update = delta * (before[s, i] - new) * update * (_ONE - update)
            by_reset = by_new * hidden * reset * (_ONE - reset)
            gate[i] = by_reset
            gate[size + i] = by_update
            gate[2 * size + i] = by_new
            given[i] = by_reset
            given[size + i] = by_update
            given[2 * size + i] = by_new * reset
            grad_before[s, i] = delta * update


@kernel
def gru_sequence(gates, across, weights, bias, begins, which, before, memory):
    """Run a gated recurrent unit through T steps of S sequences, with an empty memory where an episode begins.

    Equal to, for t = 0 ... T - 1:
        before[t] = where(begins[t, which], 0, memory[t]); across[t] = before[t] @ weights; `gru` gives memory[t + 1]

    Args:
        gates: W_inner y + b, float32 [T, S, 3 G]; becomes the gates, see `gru`.
        across: W_memory h, written, float32 [T, S, 3 G].
        weights: W_memory transposed, float32 [G, 3 G].
        bias: See `gru`.
        begins: Whether an episode begins, bool [T, N].
        which: Columns of `begins`, int64 [S].
        before: Memory at the start of every step, written, float32 [T, S, G].
        memory: float32 [T + 1, S, G]; the first is given, the others are written.
    """
    for t in range(len(gates)):
        for s in range(len(which)):
            if begins[t, which[s]]:
                before[t, s] = _ZERO
            else:
                before[t, s] = memory[t, s]
        np.dot(before[t], weights, across[t])
        gru(gates[t], across[t], bias, before[t], memory[t + 1])


@kernel
def gru_sequence_backward(gates, across, weights, begins, which, before, grad_memory):
    """Backpropagate through time: `gates` and `across` become their gradients, see `gru_backward`.

    Args:
        weights: W_memory, float32 [3 G, G].
        grad_memory: Gradient of the memory after every step from the outputs, float32 [T, S, G]; the gradient from
            later steps is added.
    """
    direct, through = np.empty_like(before[0]), np.empty_like(before[0])
    for t in range(len(gates) - 1, -1, -1):
        gru_backward(gates[t], across[t], before[t], grad_memory[t], direct)
        if t:
            np.dot(across[t], weights, through)
            for s in range(len(which)):
                if not begins[t, which[s]]:
                    for i in range(direct.shape[1]):
                        grad_memory[t - 1, s, i] += direct[s, i] + through[s, i]


@kernel
def reset_memory(hidden, ended):
    """Set rows of `hidden`, float32 [S, G], to 0 where an episode has ended, bool [S]. Equal to: hidden[ended] = 0."""
    for s in range(len(hidden)):
        if ended[s]:
            for i in range(hidden.shape[1]):
                hidden[s, i] = _ZERO


@kernel
def sample_actions(outputs, uniform, greedy, actions, log_probs):
    """Draw actions from softmax(logits) by inversion, or take the most probable ones.

    Equal to: log_p = log_softmax(outputs[:, :A]); action = argmax(log_p) if greedy, else the first a at which
    cumsum(exp(log_p)) exceeds `uniform`; log_probs = log_p[action]

    Args:
        outputs: Logits of the actions, then the value, float32 [S, A + 1].
        uniform: Random numbers from [0, 1), float64 [S].
        greedy: Whether to take the most probable actions.
        actions: Written, int64 [S].
        log_probs: Written, float32 [S].
    """
    count = outputs.shape[1] - 1
    for s in range(len(outputs)):
        best = 0
        for a in range(count):
            if outputs[s, a] > outputs[s, best]:
                best = a
        total = 0.0
        for a in range(count):
            total += np.exp(np.float64(outputs[s, a] - outputs[s, best]))
        chosen = best
        if not greedy:
            left, chosen = uniform[s] * total, count - 1
            for a in range(count):
                left -= np.exp(np.float64(outputs[s, a] - outputs[s, best]))
                if left < 0:
                    chosen = a
                    break
        actions[s] = chosen
        log_probs[s] = outputs[s, chosen] - outputs[s, best] - np.log(total)


@kernel
def log_probs_and_entropies(outputs, actions, which, log_probs, entropies):
    """Write log pi(a_t | s_t) and the policy's entropy; the logits in `outputs` become log-probabilities.

    Equal to: log_p = log_softmax(logits); log_probs = log_p[actions[:, which]];
    entropies = -(exp(log_p) * log_p).sum(-1)

    Args:
        outputs: Logits and value, float32 [T, S, A + 1].
        actions: int64 [T, N].
        which: The selected columns of `actions`, int64 [S].
        log_probs, entropies: Written, float32 [T, S].
    """
    count = outputs.shape[2] - 1
    for t in range(outputs.shape[0]):
        for s in range(outputs.shape[1]):
            row = outputs[t, s]
            best = row[0]
            for a in range(1, count):
                best = max(best, row[a])
            total = 0.0
            for a in range(count):
                total += np.exp(np.float64(row[a] - best))
            shift, entropy = best + np.log(total), 0.0
            for a in range(count):
                row[a] -= shift
                entropy -= np.exp(np.float64(row[a])) * row[a]
            log_probs[t, s] = row[actions[t, which[s]]]
            entropies[t, s] = entropy


@kernel
def log_probs_and_entropies_backward(
    outputs, actions, which, entropies, grad_log_probs, grad_entropy, grad_values
):
    """Write the gradient of the loss by logits and value into `outputs`, which hold log-probabilities p_a.

    Equal to: d loss / d logit_a = dL/dlog_prob (1[a = a_t] - p_a) - dL/dentropy p_a (log p_a + entropy)

    Args:
        grad_log_probs, grad_values: Gradients by log-probabilities and values, float32 [T, S].
        grad_entropy: Gradient by any of the entropies, scalar.
    """
    count = outputs.shape[2] - 1
    for t in range(outputs.shape[0]):
        for s in range(outputs.shape[1]):
            row, entropy, delta = outputs[t, s], entropies[t, s], grad_log_probs[t, s]
            for a in range(count):
                p = np.exp(row[a])
                row[a] = -p * (delta + grad_entropy * (row[a] + entropy))
            row[actions[t, which[s]]] += delta
            row[count] = grad_values[t, s]
