"""A planner's map and options, and episodes with planners and executors."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_dilation, label

from chat_server import ChatServer, options_of
from runcatalog import record
from runcatalog.record import evaluation
from runcatalog.record.training.checkpoint import save_checkpoint
from skills import llm
from skills.agents import checkpoints
from skills.agents.evaluation import play
from skills.agents.network import Network, Shape, initial_weights, named_views
from skills.agents.policy import NetworkAgent, sample_actions
from skills.learning import level_sets
from skills.levels import codes
from skills.levels.codes import ACTIONS, COLOURS, DOOR, KEY, NLM, PICKUP, TYPE_MASK, WALL
from skills.levels.engine import Engine
from skills.levels.generate import levels
from skills.levels.minigrid.env import SkillsEnv
from skills.levels.solver import solutions
from skills.planner import planners, prompts, subtasks
from skills.planner.chat import Chat
from skills.planner.episodes import EpisodeRunner
from skills.planner.executors import AgentExecutor, Executor
from skills.planner.oracle import Oracle, SearchExecutor
from skills.planner.planners import GoalPlanner, LanguagePlanner, OraclePlanner, RandomPlanner
from skills.planner.prompts import Situation
from skills.planner.scene import Scenes

SEEDS = range(10_000, 10_060)


class AnyAction(Executor):
    """Acts at random; of what is withheld it does nothing."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(4)

    def begin(self, n, subtask, level) -> None:
        pass

    def act(self, step, withheld):
        drawn = self._rng.random((len(withheld), ACTIONS))
        return np.where(withheld, -1, drawn).argmax(1)


def _episodes(planner, executor=None, seeds=SEEDS, **more) -> EpisodeRunner:
    executor = executor or SearchExecutor(len(seeds), Oracle())
    return EpisodeRunner("nlm2", seeds, planner, executor, more.pop("patience", 20), **more)


def _agent(**more) -> NetworkAgent:
    shape = Shape(channels=4, hidden=32, memory=32, **more)
    flat = initial_weights(shape, torch.Generator().manual_seed(1))
    named_views(flat, shape)["head"][:] *= 50
    return NetworkAgent(Network(shape, flat))


def test_a_map_has_the_cells_that_minigrid_has_shown() -> None:
    for seed in (3, 4):
        env = SkillsEnv("nlm2")
        observation, _ = env.reset(seed=seed)
        engine = Engine("nlm2", 1, auto_reset=False)
        step, scenes = engine.reset(np.array([seed])), Scenes(1, (11, 11))
        known = np.zeros((11, 11, 3), np.uint8)
        rng = np.random.default_rng(seed)
        for _ in range(100):
            scenes.look(step, engine.state().agent)
            for x, y in np.ndindex(11, 11):
                inside = env.relative_coords(x, y)
                here = (x, y) == tuple(env.agent_pos)
                if inside and not here and observation["image"][inside][0]:
                    known[y, x] = env.grid.get(x, y).encode() if env.grid.get(x, y) else (1, 0, 0)
                elif here and not known[y, x, 0]:
                    known[y, x] = (1, 0, 0)
            np.testing.assert_array_equal(scenes._cells[0], known)
            action = int(rng.choice(6, p=(0.15, 0.15, 0.4, 0.1, 0.05, 0.15)))
            observation, _, terminated, truncated, _ = env.step(action)
            step = engine.step(np.array([action]))
            if terminated or truncated:
                break


def test_options_are_known_and_not_yet_fulfilled() -> None:
    class CheckingPlanner(RandomPlanner):
        asked = 0

        def choose(self, situations: list[Situation]) -> list[str]:
            for situation in situations:
                known = {
                    prompts.object_name(thing.kind, thing.colour) for thing in situation.things
                }
                for option in situation.options[1:]:
                    verb, name = option.split(" the ")
                    assert name in known or name == "green goal square"
                    assert codes.mission_text(subtasks.code(option)) == option
                    assert verb != "pick up" or name.endswith("key")
                    assert (name, verb) != (self._in_hand(situation), "pick up")
                    self.asked += 1
                assert situation.options[0] == subtasks.EXPLORE
                assert len(set(situation.options)) == len(situation.options)
            return super().choose(situations)

        def _in_hand(self, situation: Situation) -> str:
            return prompts.object_name(*situation.carried) if situation.carried else ""

    planner = CheckingPlanner(record.Seeds(1))
    _episodes(planner, seeds=SEEDS[:24]).play()
    assert planner.asked > 500


def test_sub_tasks_of_the_search_are_a_shortest_solution() -> None:
    """The closed list of sub-tasks suffices if nearly all levels are solved; in fact all are."""
    oracle = Oracle()
    played = _episodes(OraclePlanner(oracle), SearchExecutor(len(SEEDS), oracle)).play()
    shortest = [len(solution) for solution in solutions(levels("nlm2", np.asarray(SEEDS)))]
    assert played.success.all()
    np.testing.assert_array_equal(played.steps, shortest)
    assert {verb for verb, _ in played.outcomes} == {"explore", "go to", "open", "pick up"}


def test_a_search_continues_from_any_state() -> None:
    """With a key in hand, or laid down, or a lock that is open, what is left is what is left of the solution."""
    drawn = levels("nlm2", np.asarray(SEEDS[:12]))
    carrying = 0
    for n, path in enumerate(solutions(drawn)):
        level = drawn[n : n + 1]
        engine = Engine(level, 1, auto_reset=False)
        engine.load(level)
        for done, action in enumerate(path):
            now = engine.state()
            carrying += bool(now.carried[0, 0])
            if done % 3 == 0:
                assert len(solutions(now)[0]) == len(path) - done
            engine.step(np.array([action]))
    assert carrying > 50
    ball = replace(drawn[:1], carried=np.array([[codes.BALL, 0]], np.uint16))
    with pytest.raises(ValueError, match="the carried object"):
        solutions(ball)


def test_random_planning_is_seeded_and_worse_than_the_search() -> None:
    first = _episodes(RandomPlanner(record.Seeds(1)), seeds=SEEDS[:24]).play()
    assert 0.1 < first.success.mean() < 0.9
    alone = _episodes(RandomPlanner(record.Seeds(1)), seeds=SEEDS[10:16]).play()
    np.testing.assert_array_equal(alone.reward, first.reward[10:16])


@pytest.mark.parametrize("stage", ["nlm0", "nlm2"])
def test_nothing_forbidden_is_done_under_guard(stage: str) -> None:
    seeds = range(150)
    free, kept = (
        EpisodeRunner(stage, seeds, GoalPlanner(), AnyAction(), 40, guarded=guarded).play()
        for guarded in (False, True)
    )
    assert free.outcomes["explore", "ended: forbidden"] > 10
    assert {outcome for _, outcome in kept.outcomes if outcome.startswith("ended")} <= {
        "ended: time",
        "ended: goal",
    }


def test_exploring_ends_at_the_first_object_where_none_was_in_view() -> None:
    """A level that begins in front of bare walls."""
    engine, scenes = Engine("nlm2", 200, auto_reset=False), Scenes(200, (11, 11))
    step = engine.reset(np.arange(200))
    scenes.look(step, engine.state().agent)
    bare = [n for n in range(200) if not scenes.observed(n)]
    assert bare
    for _ in range(4):
        step = engine.step(np.zeros(200, np.int64))  # turns left
        scenes.look(step, engine.state().agent)
        for n in bare:
            assert subtasks.done(subtasks.EXPLORE, scenes, n, 0) == (scenes.observed(n) > 0)
            assert subtasks.EXPLORE in subtasks.options(scenes, n, scenes.things(n))
    assert any(scenes.observed(n) for n in bare)


def test_the_guard_allows_keys_of_known_locks() -> None:
    """Keys of known or mentioned locks may be picked up; others only where that is the sub-task."""
    engine = Engine("nlm2", 300, auto_reset=False)
    step = engine.reset(np.arange(300))
    scenes = Scenes(300, (11, 11))
    rng, allowed, met = np.random.default_rng(1), 0, set()
    nothing = np.zeros((300, 4), np.uint8)
    for _ in range(40):
        state = engine.state()
        scenes.look(step, state.agent)
        for n in np.flatnonzero(step.image[:, 3, 5, 0] == DOOR):
            if step.image[n, 3, 5, 2] == codes.LOCKED:
                met.add((int(n), int(step.image[n, 3, 5, 1])))
        assert all(scenes.locks[n, colour] for n, colour in met)
        withheld = scenes.forbidden(nothing)
        for n in np.flatnonzero(step.image[:, 3, 5, 0] == KEY):
            colour = int(step.image[n, 3, 5, 1])
            doors = state.cells[n][(state.cells[n] & TYPE_MASK) == DOOR]
            locks = {int(door) >> 4 & 7 for door in doors if int(door) >> 7 & 3 == codes.LOCKED}
            assert withheld[n, PICKUP] or colour in locks
            allowed += not withheld[n, PICKUP]
            tasks = nothing.copy()
            tasks[n] = codes.mission_code(f"pick up the {COLOURS[colour]} key")
            assert not scenes.forbidden(tasks)[n, PICKUP]
        step = engine.step(rng.choice(3, 300, p=(0.2, 0.2, 0.6)))
    assert allowed > 5


def test_an_agent_with_one_sub_task_plays_as_without_a_planner() -> None:
    agent, seeds = _agent(), range(30)
    executor = AgentExecutor(agent, 30, np.random.default_rng(1), forgets=False)
    planned = EpisodeRunner("gtg0", seeds, GoalPlanner(), executor, 1000, guarded=False).play()
    alone = play(agent, "gtg0", seeds, np.random.default_rng(1))
    for name in ("success", "reward", "steps"):
        np.testing.assert_array_equal(getattr(planned, name), getattr(alone, name))


@pytest.mark.parametrize("keep_locks", [False, True])
def test_a_replayed_memory_is_that_of_an_episode_with_the_sub_task_as_its_mission(
    keep_locks,
) -> None:
    agent, count = _agent(keep_locks=keep_locks), 8
    seen, missions, actions = [], [], []

    class Recording(AgentExecutor):
        def act(self, step, withheld):
            seen.append(step._replace(image=step.image.copy(), direction=step.direction.copy()))
            missions.append(self._missions.copy())
            actions.append(super().act(step, withheld))
            return actions[-1]

    executor = Recording(agent, count, np.random.default_rng(2), forgets=True, replays=True)
    planner = RandomPlanner(record.Seeds(1))
    episodes = _episodes(planner, executor, SEEDS[:count], patience=7, guarded=False)
    episodes.play()
    assert (episodes.played.calls > 3).all()
    draws, changed = np.random.default_rng(2), 0
    for t in range(len(seen)):
        memory = agent.start(count)
        for before in seen[: t + 1]:
            outputs, memory = agent.policy(before._replace(mission=missions[t]), memory)
        np.testing.assert_array_equal(sample_actions(outputs, draws), actions[t])
        changed += t > 0 and bool((missions[t] != missions[t - 1]).any())
    assert changed > 5


def test_boxes_are_shown_as_balls_except_those_that_the_sub_task_names() -> None:
    agent, shown = _agent(), []

    class Recording(NetworkAgent):
        def policy(self, step, memory):
            shown.append((step.image.copy(), step.mission.copy()))
            return super().policy(step, memory)

    recording = Recording(agent.network)
    executor = AgentExecutor(
        recording, len(SEEDS), np.random.default_rng(1), forgets=True, boxes_as_balls=True
    )
    episodes, seen = _episodes(RandomPlanner(record.Seeds(1)), executor), []
    while episodes.unfinished.any():
        seen.append(episodes._now.image.copy())
        episodes.step()
    named = 0
    for (image, mission), before in zip(shown, seen, strict=True):
        of_boxes = mission[:, 2] == codes.BOX
        expected = before.copy()
        expected[~of_boxes, ..., 0] = np.where(
            before[~of_boxes, ..., 0] == codes.BOX, codes.BALL, before[~of_boxes, ..., 0]
        )
        np.testing.assert_array_equal(image, expected)
        named += int((image[..., 0] == codes.BOX).sum())
    assert named


def test_a_careful_executor_lays_keys_down_only_to_pick_up_others_and_in_no_doorway() -> None:
    class Watching(AnyAction):
        def __init__(self) -> None:
            super().__init__()
            self.subtasks: dict[int, str] = {}
            self.laid_for: list[str] = []
            self.in_doorways = 0

        def begin(self, n, subtask, level) -> None:
            self.subtasks[n] = subtask

        def act(self, step, withheld):
            actions = super().act(step, withheld)
            dropped = (step.image[:, 3, 6, 0] == KEY) & (actions == codes.DROP)
            dropped &= step.image[:, 3, 5, 0] == codes.EMPTY
            self.laid_for += [self.subtasks[n].split(" the ")[0] for n in np.flatnonzero(dropped)]
            left, right, beyond = (step.image[:, x, y, 0] for x, y in ((2, 5), (4, 5), (3, 4)))
            beside = (left == DOOR) | (right == DOOR) | (beyond == DOOR)
            between = (left == WALL) & (right == WALL)
            self.in_doorways += int((dropped & (beside | between)).sum())
            return actions

    free, careful = Watching(), Watching()
    _episodes(RandomPlanner(record.Seeds(1)), free).play()
    _episodes(RandomPlanner(record.Seeds(1)), careful, careful=True).play()
    assert len(set(free.laid_for)) > 1
    assert set(careful.laid_for) == {"pick up"}
    assert free.in_doorways > 0
    assert careful.in_doorways == 0


def test_an_object_on_a_resting_cell_leaves_free_cells_connected_and_objects_in_reach() -> None:
    """Against the connected components of the whole grid, with and without the object."""
    rng, scenes, found = np.random.default_rng(0), Scenes(1, (7, 7)), 0
    for _ in range(400):
        kinds = rng.choice([0, codes.EMPTY, DOOR, WALL, KEY], (7, 7), p=[0.1, 0.45, 0.1, 0.25, 0.1])
        kinds[[0, -1]] = kinds[:, [0, -1]] = WALL
        scenes._cells[0, ..., 0] = kinds
        free = ~np.isin(kinds, (WALL, KEY))
        resting = scenes._resting_cells(0)
        assert (kinds[resting] == codes.EMPTY).all()
        for cell in map(tuple, np.argwhere(resting)):
            without = free.copy()
            without[cell] = False
            components, count = label(free)
            gone = (components == components[cell]).sum() == 1  # a cell without free neighbours
            assert label(without)[1] == count - gone
            reached, still = binary_dilation(free), binary_dilation(without)
            keys = kinds == KEY
            assert gone or (still[keys] == reached[keys]).all()
            found += 1
    assert found > 500


def test_a_rule_lays_down_what_is_carried_before_another_object_is_picked_up() -> None:
    """The executor never drops by itself: without the rule no hand is ever emptied."""

    class NeverDrops(AnyAction):
        def __init__(self) -> None:
            super().__init__()
            self.carried: list[np.ndarray] = []

        def act(self, step, withheld):
            self.carried.append(step.image[:, 3, 6, 0] == KEY)
            withheld = withheld.copy()
            withheld[:, codes.DROP] = True
            return super().act(step, withheld)

    emptied = []
    for lays_down in (False, True):
        executor = NeverDrops()
        _episodes(RandomPlanner(record.Seeds(1)), executor, range(200), lays_down=lays_down).play()
        carried = np.stack(executor.carried)
        emptied.append(int((carried[:-1] & ~carried[1:]).sum()))
    assert emptied[0] == 0
    assert emptied[1] > 20


def test_the_oracle_has_a_key_lifted_that_blocks_the_way() -> None:
    """The first key is laid down on the only cell before the second door, and the second key is taken."""
    plain, unblocks, blocked = Oracle(), Oracle(unblocks=True), 0
    drawn = levels("nlm2", np.arange(200))
    for n, path in enumerate(solutions(drawn)):
        engine = Engine(drawn[n : n + 1], 1, auto_reset=False)
        engine.load(drawn[n : n + 1])
        for action in path:
            engine.step(np.array([action]))
            now = engine.state()
            lying = (now.cells[0] & codes.TOOL > 0) & (now.cells[0] & TYPE_MASK == KEY)
            if now.carried[0, 0] & codes.TOOL and lying.any():
                break
        for cell in np.argwhere(now.cells[0] & (TYPE_MASK | codes.TOOL) == codes.EMPTY):
            moved = now.cells.copy()
            moved[0][lying], moved[0][tuple(cell)] = codes.EMPTY, now.cells[0][lying][0]
            state = replace(now, cells=moved)
            if plain.actions(state) is not None or unblocks.actions(state) is None:
                continue
            blocked += 1
            assert unblocks.subtask(state).startswith("pick up")
            engine = Engine(state, 1, auto_reset=False)
            engine.load(state)
            for action in unblocks.actions(state):
                step = engine.step(np.array([action]))
            assert step.reward[0] > 0 or step.truncated[0]
            break
        if blocked == 3:
            break
    assert blocked == 3


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ('{"subtask": "explore"}', ""),
        ('```json\n{"subtask": "explore"}\n```', ""),
        ('<think>A door? No.</think>\n{"subtask": "explore"}', ""),
        ("explore", "no JSON"),
        ('{"task": "explore"}', "subtask"),
        ('["explore"]', "subtask"),
        ('{"subtask": "Explore"}', "not in the list"),
        ('{"subtask": "open the blue door"}', "not in the list"),
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_answers_are_checked(reply: str, problem: str) -> None:
    named, message = prompts.parse_answer(reply, ["explore", "open the red door"])
    assert named == ("" if problem else "explore")
    assert problem in message


@pytest.fixture
def talks(tmp_path: Path) -> Iterator:
    """A language planner, and a server whose answers a function of the request decides."""
    servers = []

    def make(answer, calls="calls.jsonl") -> tuple[LanguagePlanner, ChatServer]:
        server = ChatServer(lambda path, body: (200, answer(body))).__enter__()
        servers.append(server)
        asks = Chat("ollama", server.url, "small:1b", 30, 0)
        chance = RandomPlanner(record.Seeds(1))
        return LanguagePlanner(asks, tmp_path / calls, chance, 3), server

    yield make
    for server in servers:
        server.__exit__()


def test_an_invalid_answer_is_retried_with_the_reason(talks) -> None:
    def answer(body) -> str:
        first = len(body["messages"]) == 2
        return "hello" if first else prompts.answer(options_of(body)[-1])

    class Last(planners.Planner):
        def choose(self, situations: list[Situation]) -> list[str]:
            return [situation.options[-1] for situation in situations]

    planner, server = talks(answer)
    played = _episodes(planner, seeds=SEEDS[:6]).play()
    assert planner.corrected == played.calls.sum() == len(server.requests) / 2
    assert planner.replaced == 0
    second = server.chats[-1]["messages"]
    assert second[2]["content"] == "hello"
    assert "no JSON" in second[3]["content"]
    same = _episodes(Last(), seeds=SEEDS[:6]).play()
    np.testing.assert_array_equal(played.reward, same.reward)


def test_after_two_invalid_answers_a_sub_task_is_drawn_at_random(talks) -> None:
    planner, _ = talks(lambda body: prompts.answer("fly"))
    played = _episodes(planner, seeds=SEEDS[:6]).play()
    assert planner.replaced == played.calls.sum()
    drawn = _episodes(RandomPlanner(record.Seeds(1)), seeds=SEEDS[:6]).play()
    np.testing.assert_array_equal(played.reward, drawn.reward)


def test_all_prompts_and_answers_are_kept(talks, tmp_path: Path) -> None:
    def answer(body) -> str:
        return prompts.answer(options_of(body)[len(body["messages"][1]["content"]) % 2])

    planner, server = talks(answer)
    first = _episodes(planner, seeds=SEEDS[:6]).play()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert len(lines) == len(server.chats) == first.calls.sum()
    asked = sorted(json.dumps(chat["messages"]) for chat in server.chats)
    assert sorted(json.dumps(line["messages"]) for line in lines) == asked
    for line in lines:
        assert f"Step {line['step']} of 121" in line["messages"][1]["content"]
        assert json.loads(line["reply"])["subtask"] in line["options"]


DOES = {"agent": "search", "shared": 3, "more": 3, "planner": "ollama", "model": "small:1b"}


@pytest.fixture
def played(run_main) -> Callable[..., dict]:
    """Run `skill:llm` in a directory and return its result."""
    return lambda folder, **flags: run_main(folder, llm, **DOES | flags)["result"]


def test_a_resumed_run_repeats_no_request_after_its_server_died(played, tmp_path: Path) -> None:
    left = [1000]

    def answer(path, body):
        if path == "/api/show":
            return 200, {}
        left[0] -= 1
        if left[0] < 0:
            return 500, {"error": "gone"}
        return 200, prompts.answer(options_of(body)[-1])

    with ChatServer(answer) as server:
        whole = played(tmp_path / "whole", url=server.url)
        asked = len(server.chats)
        left[0] = asked // 2
        with pytest.raises(record.RunFailed, match="gone"):
            played(tmp_path / "dies", url=server.url, retries=0)
        refused = len(server.chats) - asked - asked // 2
        left[0] = 1000
        dead = played(tmp_path / "dies", url=server.url)
        assert len(server.chats) == 2 * asked + refused
    assert dead["metrics"] == whole["metrics"]
    assert dead["table"] == whole["table"]


def test_a_result_states_how_many_sub_tasks_were_drawn_at_random(played, tmp_path: Path) -> None:
    """Every other call gets two invalid answers; also after a resume, which asks nothing again."""

    def answer(path, body):
        if path == "/api/show":
            return 200, {}
        invalid = "fly" if len(body["messages"][1]["content"]) % 2 else options_of(body)[-1]
        return 200, prompts.answer(invalid)

    with ChatServer(answer) as server:
        result = played(tmp_path, url=server.url)
        lines = [
            json.loads(line)
            for line in (tmp_path / "artifacts/calls.jsonl").read_text().splitlines()
        ]
        again = played(tmp_path, url=server.url)
    calls = len({(line["episode"], line["call"]) for line in lines})
    drawn = sum(line["attempt"] == 1 and not line["valid"] for line in lines)
    assert 0 < drawn < calls
    metrics = result["metrics"]
    assert metrics["planner_calls"] == calls == metrics["calls"] * 6
    assert (metrics["invalid_once"], metrics["invalid_twice"]) == (0, drawn)
    assert metrics["random_share"] == drawn / calls
    assert f"{drawn} of {calls} calls" in result["summary"]
    assert result["table"][1]["rows"][-1][-1] == f"0 / {drawn} of {calls}"
    assert again["metrics"] == metrics
    without = played(tmp_path / "random", planner="random", model="")
    assert "random_share" not in without["metrics"]
    assert "at random" not in without["summary"]


def test_an_agent_in_a_folder_plays_the_task_that_it_was_trained_on(played, tmp_path: Path) -> None:
    shape = Shape(4, 16, 8)
    network = Network(shape, initial_weights(shape, torch.Generator().manual_seed(1)))
    for stage in ("nlm1", "pkp4"):
        save_checkpoint(
            tmp_path / stage / "checkpoints", 1, checkpoints.named_tensors(network),
            checkpoints.description(shape, stage),
        )  # fmt: skip
    flags = {"planner": "none", "model": ""}
    result = played(tmp_path / "run", agent=str(tmp_path / "nlm1"), **flags)
    episodes = play(NetworkAgent(network), "nlm2", range(6), record.Seeds(1).generator("actions"))
    assert result["objective"]["value"] == pytest.approx(episodes.reward.mean())
    with pytest.raises(record.UserError, match=r"--agent: .* trained on pkp4"):
        played(tmp_path / "other", agent=str(tmp_path / "pkp4"), **flags)


def test_a_run_reports_rewards_and_success_separately(played, tmp_path: Path) -> None:
    result = played(tmp_path, planner="random", model="")
    one_by_one, together = result["table"]
    drawn = _episodes(RandomPlanner(record.Seeds(1)), seeds=range(6)).play()
    assert one_by_one["rows"][0][2:5] == [f"{x:.3f}" if x else "0" for x in drawn.reward[:3]]
    assert result["objective"]["value"] == pytest.approx(drawn.reward.mean())
    assert result["metrics"]["success/all"] == drawn.success.mean()
    assert result["metrics"]["reward/more"] == pytest.approx(drawn.reward[3:].mean())
    assert [row[2:4] for row in together["rows"]] == [["shared", "3"], ["more", "3"], ["all", "6"]]
    for table in result["table"]:
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


@pytest.mark.parametrize("which", ["validation", "test", "fresh"])
def test_a_run_plays_the_levels_of_the_set_and_declares_it(played, tmp_path: Path, which) -> None:
    result = played(tmp_path, planner="random", model="", levels=which)
    seeds = level_sets.level_seeds("nlm2", which, 6)
    drawn = _episodes(RandomPlanner(record.Seeds(1)), seeds=seeds).play()
    assert result["objective"]["value"] == pytest.approx(drawn.reward.mean())
    declared = result["evaluation"]
    assert declared["split"] == ("validation" if which == "validation" else "test")
    assert declared["digest"] == evaluation.content_digest(levels("nlm2", seeds).contents())
    assert (seeds.tolist() == list(range(6))) == (which == "test")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"levels": "training"}, "--levels"),
        ({"agent": "ppo", "replay": True, "forget": False}, "--replay"),
        ({"model": ""}, "--model"),
        ({"url": "somewhere"}, "--url"),
        ({"agent": "nlm"}, "planner=none agent=nlm"),
        ({"agent": "nlm1"}, "planner=none agent=nlm"),
        ({"planner": "oracle"}, "--model: planner=oracle is no language model"),
        ({"planner": "random", "model": "", "retries": 0}, "--retries: planner=random"),
        ({"planner": "none"}, "planner=none agent=nlm"),
        ({"planner": "none", "agent": "moe"}, "planner=none agent=nlm"),
        ({"planner": "none", "agent": "tgl3"}, "planner=none agent=nlm"),
        ({"planner": "none", "agent": "nlm", "lay_down": "rule"}, "--lay-down: without a planner"),
        ({"planner": "none", "agent": "nlm", "boxes_as_balls": True}, "--boxes-as-balls: without"),
        ({"planner": "none", "agent": "nlm", "forget": False}, "--forget: without a planner"),
        ({"planner": "gpt"}, "--planner"),
        ({"agent": "search", "lay_down": "rule"}, "--lay-down: agent=search follows shortest"),
        ({"agent": "search", "forget": False}, "--forget: agent=search"),
        ({"agent": ""}, "--agent: '' is no single agent"),
        ({"agent": "nlm2 nlm3"}, "--agent: 'nlm2 nlm3' is no single agent"),
    ],
)
def test_wrong_flags_are_named(flags: dict, message: str) -> None:
    with pytest.raises(record.UserError, match=message):
        llm.Config(**DOES | flags)


def test_levels_of_the_source_are_the_first_ones() -> None:
    missions = levels("nlm2", np.arange(10)).mission
    assert (missions[:, 0] == NLM).all()
    assert {len(rewards) for rewards in llm.reported.REWARDS.values()} == {10}
    means = {name: round(100 * sum(rewards) / 10) for name, rewards in llm.reported.REWARDS.items()}
    assert means == {"NLM": 43, "DIS": 55, "PPO": 33, "MOE": 57}


def test_a_run_stands_for_the_model_that_it_trained(monkeypatch, tmp_path) -> None:
    run = "0123abcd" * 4
    model = tmp_path / "runs" / run / "artifacts/model"
    model.mkdir(parents=True)
    monkeypatch.setenv("GUILD_HOME", str(tmp_path))
    for named, served in ((run, str(model)), (run[:8], str(model)), ("qwen2.5:7b", "qwen2.5:7b")):
        assert llm.Config(planner="openai", model=named).served == served


def test_an_agent_without_a_finished_run_is_named(played, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "home/runs").mkdir(parents=True)
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "home"))
    with pytest.raises(record.UserError, match=r"--agent: .*`guild run skill:distill`"):
        played(tmp_path / "run", planner="random", agent="dis", model="")


def test_an_unreachable_server_is_named(played, tmp_path: Path) -> None:
    with pytest.raises(record.UserError, match=r"--url: no answer from http://127.0.0.1:9 .*docs"):
        played(tmp_path, url="http://127.0.0.1:9", retries=0)
