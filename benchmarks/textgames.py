"""The text games compared with their alternatives, one thread each.

Sokoban's levels against gym-sokoban's generator, both with its reverse play of up to 300 moves, retries included; and
shortest solutions against a breadth-first search in plain Python, the one that the tests compare with.
"""

import argparse
import contextlib
import io
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests/helpers"))
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
from benchmarks import _report  # noqa: E402

from naive_games import Warehouse  # noqa: E402
from textgames.games import sokoban, solver  # noqa: E402

# Gym says at length that it is no longer maintained
with contextlib.redirect_stderr(io.StringIO()):
    from gym_sokoban.envs.room_utils import generate_room

DEPTH = 300  # fixed in gym-sokoban
CASES = ((6, 1), (6, 2), (8, 1), (10, 1))


def ours_drawn(size: int, boxes: int, count: int) -> float:
    """Levels a second."""
    begin = time.perf_counter()
    sokoban.generate(np.arange(count), size, boxes, DEPTH)
    return count / (time.perf_counter() - begin)


def gyms_drawn(size: int, boxes: int, count: int) -> float:
    """Levels a second of gym-sokoban."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    begin = time.perf_counter()
    for _ in range(count):
        while not _room(size, boxes):
            pass
    return count / (time.perf_counter() - begin)


def _room(size: int, boxes: int) -> bool:
    """Return whether gym-sokoban generated a level; otherwise its environment also tries again."""
    try:
        generate_room((size, size), num_steps=int(1.7 * 2 * size), num_boxes=boxes)
    except (RuntimeError, RuntimeWarning):
        return False
    return True


def ours_solved(cells: np.ndarray) -> float:
    """Levels a second."""
    begin = time.perf_counter()
    solver.solve(cells)
    return len(cells) / (time.perf_counter() - begin)


def plainly_solved(texts: list[str]) -> float:
    """Levels a second of the plain search."""
    levels = [Warehouse(text) for text in texts]
    begin = time.perf_counter()
    for level in levels:
        level.shortest()
    return len(texts) / (time.perf_counter() - begin)


def main() -> None:
    """Measure all in turn and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument(
        "--levels", type=int, default=20_000, help="of a turn; the peers have fewer"
    )
    options = parser.parse_args()
    rows = [drawn_row(*case, options) for case in CASES]
    rows += [solved_row(*case, options) for case in ((6, 1), (6, 2))]
    _report.report("textgames", rows, dry_run=options.dry_run)


def drawn_row(size: int, boxes: int, options: argparse.Namespace) -> dict:
    """Return levels generated per second."""
    measures = {
        "ours": partial(ours_drawn, size, boxes, options.levels // boxes),
        "peer": partial(gyms_drawn, size, boxes, max(10, options.levels // 400)),
    }
    measures["ours"]()  # compiled
    rates = _report.alternate(measures, options.repeats)
    return _report.row(
        f"levels of Sokoban made, {size} x {size}, boxes: {boxes}", rates["ours"], rates["peer"],
        peer_name="gym-sokoban", unit="levels/s", target=10,
    )  # fmt: skip


def solved_row(size: int, boxes: int, options: argparse.Namespace) -> dict:
    """Levels solved a second."""
    game = sokoban.Sokoban(size, boxes)
    game.reset(np.arange(options.levels))
    texts = game.render(np.arange(options.levels // 10))
    measures = {"ours": partial(ours_solved, game.cells), "peer": partial(plainly_solved, texts)}
    measures["ours"]()  # compiled
    rates = _report.alternate(measures, options.repeats)
    return _report.row(
        f"levels of Sokoban solved, {size} x {size}, boxes: {boxes}", rates["ours"], rates["peer"],
        peer_name="breadth-first search in plain Python", unit="levels/s", target=5,
    )  # fmt: skip


if __name__ == "__main__":
    main()
