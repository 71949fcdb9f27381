"""Decision Transformer for discrete states and rewards received, written from its publication.

Chen et al. 2021, "Decision Transformer: reinforcement learning via sequence modeling", arXiv 2106.01345, section 3 and
algorithm 1, in the manner of its one-file versions: torch's own attention module with a boolean mask, blocks in a list.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """LayerNorm, attention, LayerNorm, two linear layers, each part added to its input."""

    def __init__(
        self, width: int, heads: int, feed_forward: int, tokens: int, attention: float, rest: float
    ) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, attention, batch_first=True)
        self.after_attention = nn.Dropout(rest)
        self.layers = nn.Sequential(
            nn.Linear(width, feed_forward),
            nn.GELU(),
            nn.Linear(feed_forward, width),
            nn.Dropout(rest),
        )
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)

    def forward(self, x: Tensor) -> Tensor:
        """[R, tokens, width] to the same."""
        count = x.shape[1]
        normal = self.before_attention(x)
        read, _ = self.attention(
            normal, normal, normal, attn_mask=self.later[:count, :count], need_weights=False
        )
        x = x + self.after_attention(read)
        return x + self.layers(self.before_layers(x))


class DecisionTransformer(nn.Module):
    """Predict the action from each state's token; rewards, states and actions take turns."""

    def __init__(
        self, *, states: int, actions: int, rewards: int, times: int, window: int, width: int, layers: int,
        heads: int, feed_forward: int, attention_dropout: float, residual_dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.state, self.action = nn.Embedding(states, width), nn.Embedding(actions, width)
        self.reward, self.time = nn.Embedding(rewards, width), nn.Embedding(times, width)
        self.first, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, heads, feed_forward, 3 * window, attention_dropout, residual_dropout)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, actions)

    def forward(self, context: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Logits [R, n, actions] of rewards, states, actions and times, int64 [R, n] each."""
        rewards, states, actions, times = context
        time = self.time(times)
        parts = [
            self.reward(rewards) + time,
            self.state(states) + time,
            self.action(actions) + time,
        ]
        x = torch.stack(parts, dim=2).flatten(1, 2)
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x)[:, 1::3])
