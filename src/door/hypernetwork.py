"""The hypernetwork: from a task embedding to all weights of a target network.

Full (`hnppo` of the source): a perceptron with relu whose last layer gives every weight at once;
one linear head per target tensor, as the source has it, is the same matrix cut into rows.
Chunked (`chnppo`): a smaller last layer gives `chunk_size` weights at a time, told apart by a
learned chunk embedding (von Oswald et al. 2020, "Continual learning with hypernetworks", 3.2).

The backward pass is written out. Theta has millions of weights and is stepped for one task
embedding at a time, so that time goes into reading and writing memory; written out, each gradient
is written once, into memory that stays allocated. Autograd takes three times as long.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import linear

CHUNK_SIZE = 1000  # weights (source)
CHUNK_DIM = 5  # (source)


class Hypernetwork:
    """Generates vectors of `outputs` weights.

    Attributes:
        theta: weight and bias of each layer in turn and, when chunked, the chunk embeddings
            [chunks, chunk_dim] last. Owned by whoever steps them; `gradients` lie beside them.
    """

    def __init__(
        self,
        outputs: int,
        te_dim: int,
        hidden: tuple[int, ...],
        generator: torch.Generator,
        *,
        chunk_size: int = 0,
        chunk_dim: int = CHUNK_DIM,
    ) -> None:
        """Draws theta as torch's Linear does: U(-1/sqrt(n), 1/sqrt(n)) for a layer of n inputs.

        Args:
            outputs: P, weights to generate.
            te_dim: size of a task embedding.
            hidden: widths of the hidden layers.
            generator: source of the randomness.
            chunk_size: weights per chunk; 0: all at once (full).
            chunk_dim: size of a chunk embedding, drawn from N(0, 1).
        """
        self.outputs = outputs
        self.te_dim = te_dim
        self.chunks = math.ceil(outputs / chunk_size) if chunk_size else 0
        inputs = te_dim + (chunk_dim if self.chunks else 0)
        widths = (inputs, *hidden, chunk_size or outputs)
        self.theta: list[Tensor] = []
        for fan_in, width in itertools.pairwise(widths):
            bound = 1 / math.sqrt(fan_in)
            for shape in ((width, fan_in), (width,)):
                self.theta.append(torch.empty(shape).uniform_(-bound, bound, generator=generator))
        self.layers = len(widths) - 1
        if self.chunks:
            self.theta.append(torch.randn(self.chunks, chunk_dim, generator=generator))
        self.gradients = [torch.zeros_like(tensor) for tensor in self.theta]

    def named(self) -> dict[str, Tensor]:
        """Theta by name."""
        names = [f"theta.{i // 2}.{'bias' if i % 2 else 'weight'}" for i in range(2 * self.layers)]
        return dict(zip([*names, "theta.chunks"], self.theta, strict=False))

    def generate(self, embeddings: Tensor, theta: list[Tensor] | None = None) -> Tensor:
        """Weights [R, outputs] for task embeddings [R, te_dim]; `theta` defaults to its own."""
        theta = theta or self.theta
        last = 2 * self.layers - 2
        generated = linear(self.activations(embeddings, theta)[-1], theta[last], theta[last + 1])
        if self.chunks:
            generated = generated.reshape(len(embeddings), self.chunks * generated.shape[1])
            generated = generated[:, : self.outputs]
        return generated

    def activations(self, embeddings: Tensor, theta: list[Tensor] | None = None) -> list[Tensor]:
        """The input of each layer, [R, n] or [R * chunks, n]; of `theta` the last layer may be left out."""
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
        """From dL/d(weights) to dL/d(theta), into `self.gradients`, and dL/d(embeddings).

        Args:
            embeddings: [R, te_dim].
            gradient: [R, outputs], of the loss with respect to the generated weights.
            theta: where to evaluate; its own by default.
            add: add to what `self.gradients` holds instead of replacing it.

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
        self._into_gradients(self.layers - 1, activations, delta, add=add)
        return self.backward_below(activations, delta @ theta[2 * self.layers - 2], theta, add=add)

    @torch.no_grad()
    def backward_below(
        self,
        activations: list[Tensor],
        delta: Tensor,
        theta: list[Tensor] | None = None,
        *,
        add: bool = False,
    ) -> Tensor:
        """`backward` from the inputs of the last layer on.

        Args:
            activations: of :meth:`activations`.
            delta: of the loss with respect to the last of them, of its shape; changed.
            theta: where to evaluate, of which the last layer may be left out.
            add: see `backward`.

        Returns:
            [R, te_dim].
        """
        theta = theta or self.theta
        for layer in range(self.layers - 2, -1, -1):
            delta *= activations[layer + 1] > 0
            self._into_gradients(layer, activations, delta, add=add)
            delta = delta @ theta[2 * layer]
        if self.chunks:
            rows = delta.view(-1, self.chunks, delta.shape[1])
            self.gradients[-1].mul_(1.0 if add else 0.0).add_(rows[:, :, self.te_dim :].sum(0))
            return rows[:, :, : self.te_dim].sum(1)
        return delta

    def _into_gradients(
        self, layer: int, activations: list[Tensor], delta: Tensor, *, add: bool
    ) -> None:
        of_weight, of_bias = self.gradients[2 * layer], self.gradients[2 * layer + 1]
        keep = 1.0 if add else 0.0
        torch.addmm(of_weight, delta.T, activations[layer], beta=keep, out=of_weight)
        of_bias.mul_(keep).add_(delta.sum(0))


def regulariser(
    hypernetwork: Hypernetwork,
    embeddings: Tensor,
    targets: Tensor,
    beta: float,
    theta: list[Tensor] | None = None,
) -> tuple[float, Tensor]:
    """What the old tasks' weights have moved (von Oswald et al. 2020, eq. 2).

    beta / T * sum over the T old tasks of the squared distance to the weights that were stored
    for them: the sum over all weights, the mean over tasks, as in the source.

    Args:
        hypernetwork: theta belongs to it.
        embeddings: [T, te_dim], of the old tasks.
        targets: [T, outputs], stored when the present task began.
        beta: strength [1].
        theta: where to evaluate, theta + delta theta for the look-ahead.

    Returns:
        The loss, and its gradient with respect to the generated weights [T, outputs].
    """
    moved = hypernetwork.generate(embeddings, theta) - targets
    scale = beta / len(targets)
    return scale * moved.square().sum().item(), (2 * scale) * moved
