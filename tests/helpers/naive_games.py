"""The games' rules once more, in plain Python: what the batches are compared with."""

from collections import deque

SIGNS = {(0, 0): "_", (1, 0): "O", (0, 1): "X", (1, 1): "√", (0, 2): "P", (1, 2): "S"}
WAYS = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}


class Warehouse:
    """Sokoban, read from its text."""

    def __init__(self, text: str) -> None:
        grid = [line.split() for line in text.splitlines()]
        cells = {(y, x): sign for y, row in enumerate(grid) for x, sign in enumerate(row)}
        self.shape = len(grid), len(grid[0])
        self.walls = {at for at, sign in cells.items() if sign == "#"}
        self.targets = {at for at, sign in cells.items() if sign in "O√S"}
        self.boxes = frozenset(at for at, sign in cells.items() if sign in "X√")
        (self.player,) = [at for at, sign in cells.items() if sign in "PS"]

    @property
    def solved(self) -> bool:
        return self.boxes <= self.targets

    def after(self, player, boxes, action):
        """Where player and boxes are after an action; 0 is none."""
        if action == 0:
            return player, boxes
        dy, dx = WAYS[action]
        to, beyond = (player[0] + dy, player[1] + dx), (player[0] + 2 * dy, player[1] + 2 * dx)
        if to in self.walls or (to in boxes and (beyond in self.walls or beyond in boxes)):
            return player, boxes
        return to, (boxes - {to}) | {beyond} if to in boxes else boxes

    def step(self, action):
        """Reward, and whether the player moved."""
        was, before = self.player, len(self.boxes & self.targets)
        self.player, self.boxes = self.after(self.player, self.boxes, action)
        now = len(self.boxes & self.targets)
        reward = -0.1 + (1 if now > before else -1 if now < before else 0) + 10 * self.solved
        return reward, self.player != was

    def text(self) -> str:
        rows = []
        for y in range(self.shape[0]):
            row = []
            for x in range(self.shape[1]):
                at = (y, x)
                what = 1 if at in self.boxes else 2 if at == self.player else 0
                row.append("#" if at in self.walls else SIGNS[int(at in self.targets), what])
            rows.append("".join(f" {sign} \t" for sign in row))
        return "\n".join(rows)

    def shortest(self):
        """Length of a shortest solution, by breadth-first search; None if there is none."""
        begin = self.player, self.boxes
        far, queue = {begin: 0}, deque([begin])
        while queue:
            here = queue.popleft()
            if here[1] <= self.targets:
                return far[here]
            for action in WAYS:
                to = self.after(*here, action)
                if to not in far:
                    far[to] = far[here] + 1
                    queue.append(to)
        return None
