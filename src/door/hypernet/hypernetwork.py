"""The hypernetwork h(e, Theta): from a task embedding e to all weights of a target network.

Full (`hnppo` of the source): an MLP with relu whose last layer gives all weights at once. The source has a linear head
per target tensor, which is the same matrix divided into blocks of rows.
Chunked (`chnppo`): a smaller last layer gives `chunk_size` weights at a time; a learned chunk embedding is part of the
input (von Oswald et al. 2020, "Continual learning with hypernetworks", arXiv 1906.00695, section 3.2).

The backward pass is written out. Theta has millions of weights and few rows of input, so most of the time is memory
traffic; here every gradient is written once, into memory that stays allocated. Autograd takes three times as long.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import linear

CHUNK_SIZE = 1000  # weights (source)
CHUNK_DIM = 5  # size of a chunk embedding, which is drawn from N(0, 1) (source)


class Hypernetwork:
    """Generates vectors of P weights from task embeddings.

    Attributes:
        theta: Weight and bias per layer and, if chunked, the chunk embeddings [chunks, CHUNK_DIM] last.
        gradients: Memory for the gradients of `theta`, shaped alike.
        outputs: P.
        te_dim: Size of a task embedding.
        chunks: Number of chunks; 0: full.
    """

    def __init__(
        self,
        outputs: int,
        te_dim: int,
        hidden: tuple[int, ...],
        generator: torch.Generator,
        *,
        chunk_size: int = 0,
    ) -> None:
        """Draw theta as torch's Linear does: U(-1/sqrt(n), 1/sqrt(n)) for a layer of n inputs.

        Args:
            outputs: P, number of weights to generate.
            te_dim: Size of a task embedding.
            hidden: Widths of the hidden layers.
            generator: Source of randomness.
            chunk_size: Weights per chunk; 0: all at once (full).
        """
        self.outputs = outputs
        self.te_dim = te_dim
        self.chunks = math.ceil(outputs / chunk_size) if chunk_size else 0
        inputs = te_dim + (CHUNK_DIM if self.chunks else 0)
        widths = (inputs, *hidden, chunk_size or outputs)
        self.theta: list[Tensor] = []
        for fan_in, width in itertools.pairwise(widths):
            bound = 1 / math.sqrt(fan_in)
            for shape in ((width, fan_in), (width,)):
                self.theta.append(torch.empty(shape).uniform_(-bound, bound, generator=generator))
        self.layers = len(widths) - 1
        if self.chunks:
            self.theta.append(torch.randn(self.chunks, CHUNK_DIM, generator=generator))
        self.gradients = [torch.zeros_like(tensor) for tensor in self.theta]

    def named(self) -> dict[str, Tensor]:
        """Return theta by name, as in checkpoints."""
        names = [f"theta.{i // 2}.{'bias' if i % 2 else 'weight'}" for i in range(2 * self.layers)]
        return dict(zip([*names, "theta.chunks"], self.theta, strict=False))

    def generate(self, embeddings: Tensor, theta: list[Tensor] | None = None) -> Tensor:
        """Return h(e, theta) for task embeddings [R, te_dim]: weights [R, P]; `theta` is its own by default."""
        theta = theta or self.theta
        last = 2 * self.layers - 2
        generated = linear(self.activations(embeddings, theta)[-1], theta[last], theta[last + 1])
        if self.chunks:
            generated = generated.reshape(len(embeddings), self.chunks * generated.shape[1])
            generated = generated[:, : self.outputs]
        return generated

    def activations(self, embeddings: Tensor, theta: list[Tensor] | None = None) -> list[Tensor]:
        """Return the inputs of the layers, [R, n] or [R * chunks, n]; `theta` may lack the last layer."""
        theta = theta or self.theta
        inputs = embeddings
        if self.chunks:
            tasks = embeddings.repeat_interleave(self.chunks, dim=0)
            inputs = torch.cat((tasks, theta[-1].repeat(len(embeddings), 1)), dim=1)
        activations = [inputs]
        for layer in range(self.layers - 1):
            output = linear(activations[-1], theta[2 * layer], theta[2 * layer + 1])
            activations.append(torch.relu(output))
        return activations

    @torch.no_grad()
    def backward(
        self,
        embeddings: Tensor,
        gradient: Tensor,
        theta: list[Tensor] | None = None,
        *,
        add: bool = False,
    ) -> Tensor:
        """Write dL/dtheta into `gradients` and return dL/de, given dL/dW.

        Args:
            embeddings: [R, te_dim], e.
            gradient: [R, P], dL/dW of the generated weights W.
            theta: Where to evaluate; its own by default.
            add: Add to `gradients` instead of replacing them.

        Returns:
            [R, te_dim].
        """
        theta = theta or self.theta
        activations = self.activations(embeddings, theta)
        delta = gradient
        if self.chunks:
            padded = gradient.new_zeros(len(gradient), self.chunks * theta[-2].numel())
            padded[:, : self.outputs] = gradient
            delta = padded.view(-1, theta[-2].numel())
        self._write_gradients(self.layers - 1, activations, delta, add=add)
        delta = delta @ theta[2 * self.layers - 2]
        return self.backward_hidden(activations, delta, theta, add=add)

    @torch.no_grad()
    def backward_hidden(
        self,
        activations: list[Tensor],
        delta: Tensor,
        theta: list[Tensor] | None = None,
        *,
        add: bool = False,
    ) -> Tensor:
        """Do the part of `backward` below the last layer.

        Args:
            activations: The result of `activations`.
            delta: Derivative with respect to the last activation, of its shape; overwritten.
            theta: Where to evaluate; may lack the last layer.
            add: See `backward`.

        Returns:
            dL/de, [R, te_dim].
        """
        theta = theta or self.theta
        for layer in range(self.layers - 2, -1, -1):
            delta *= activations[layer + 1] > 0
            self._write_gradients(layer, activations, delta, add=add)
            delta = delta @ theta[2 * layer]
        if self.chunks:
            rows = delta.view(-1, self.chunks, delta.shape[1])
            self.gradients[-1].mul_(1.0 if add else 0.0).add_(rows[:, :, self.te_dim :].sum(0))
            return rows[:, :, : self.te_dim].sum(1)
        return delta

    def _write_gradients(
        self, layer: int, activations: list[Tensor], delta: Tensor, *, add: bool
    ) -> None:
        weight, bias = self.gradients[2 * layer], self.gradients[2 * layer + 1]
        keep = 1.0 if add else 0.0
        torch.addmm(weight, delta.T, activations[layer], beta=keep, out=weight)
        bias.mul_(keep).add_(delta.sum(0))


def regulariser(
    hypernetwork: Hypernetwork,
    embeddings: Tensor,
    targets: Tensor,
    beta: float,
    theta: list[Tensor] | None = None,
) -> tuple[float, Tensor]:
    """Return R = beta / T sum_j ||h(e_j, theta) - W*_j||^2 over the T old tasks (von Oswald et al. 2020, eq. 2).

    The squared norm is a sum over all weights; the source has the same sum and mean.

    Args:
        hypernetwork: h.
        embeddings: [T, te_dim], e_j of the old tasks.
        targets: [T, P], W*_j, stored at the start of the current task.
        beta: Strength.
        theta: Where to evaluate; theta + delta theta for the look-ahead.

    Returns:
        R, and dR/dW [T, P] with respect to the generated weights.
    """
    change = hypernetwork.generate(embeddings, theta) - targets
    scale = beta / len(targets)
    return scale * change.square().sum().item(), (2 * scale) * change
