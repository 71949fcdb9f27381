"""A million decisions of play that looks for what the simulator gets wrong, on every task with both robots.

The peer is what is allowed: 3 mm for the deepest contact of any two solids, and as many decisions with
finite numbers as there were. Play is random commands, full commands held for 0.8 s, flights at the
handle at full speed, and the scripted controllers that open the doors; new worlds for each 128 decisions.
"""

import os
import sys
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _report  # noqa: E402

from door.env.door_env import HORIZON, DoorVecEnv  # noqa: E402
from door.env.robots import ROBOTS  # noqa: E402
from door.env.stress import KINDS, Outcome, play  # noqa: E402
from door.env.tasks import TASKS  # noqa: E402
from runcatalog import record  # noqa: E402

ENVS = 32
LIMIT = 3.0  # mm
TOTAL = 1_000_000  # decisions


def stress(task: str, robot: str, kind: str, decisions: int) -> list[Outcome]:
    """Play at least ``decisions`` in worlds that change with every episode."""
    rng = record.Seeds(1).generator(f"stress {kind} {task} {robot}")
    env = DoorVecEnv(
        task,
        robot,
        ENVS,
        seeds=record.Seeds(1),
        threads=len(os.sched_getaffinity(0)),
        stagger=False,
    )
    outcomes = [play(env, kind, HORIZON, rng)]
    while len(outcomes) * HORIZON * ENVS < decisions:
        env.new_worlds()
        outcomes.append(play(env, kind, HORIZON, rng))
    env.close()
    return outcomes


def main() -> None:
    """Play, print and write the result."""
    parser = _report.parser(__doc__, repeats=None)
    parser.add_argument(
        "--decisions", type=int, default=TOTAL, help="of all kinds of play together"
    )
    options = parser.parse_args()
    rows, played, finite = [], 0, 0
    for robot in ROBOTS:
        for kind in KINDS:
            outcomes = []
            for task in TASKS:
                share = options.decisions // (len(ROBOTS) * len(KINDS) * len(TASKS))
                outcomes += stress(task, robot, kind, share)
            count = sum(o.decisions for o in outcomes)
            played += count
            finite += sum(o.decisions for o in outcomes if o.finite)
            deepest = 1000 * max(o.deepest for o in outcomes)
            what = f"{robot}, {kind}, {len(TASKS)} tasks, {count:,} decisions: deepest contact"
            print(f"{what} {deepest:.2f} mm", flush=True)
            rows.append(_row(what, deepest, LIMIT, peer_name="the limit", unit="mm"))
    what = "decisions with finite observations, rewards and joints"
    more = {"peer_name": "all", "unit": "decisions", "target_is": "at least"}
    rows.append(_row(what, finite, played, **more))
    _report.report("physics", rows, dry_run=options.dry_run)


def _row(what: str, ours: float, peer: float, **more: str) -> dict:
    return _report.row(what, [ours], [peer], target=1.0, **{"target_is": "at most"} | more)


if __name__ == "__main__":
    main()
