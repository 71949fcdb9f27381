"""The levels as minigrid environments; missions in words."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper, RGBImgPartialObsWrapper

import skills
from skills.levels import codes
from skills.levels.minigrid import pictures
from skills.levels.minigrid.env import SkillsEnv
from skills.levels.stages import STAGES


@pytest.mark.parametrize("stage", ["gtg1", "pkpc2", "tgl3", "all6", "nlm2"])
def test_gymnasiums_checker_passes(stage):
    check_env(gymnasium.make(skills.env_id(stage)).unwrapped, skip_render_check=True)


def test_every_stage_is_registered():
    for stage in STAGES:
        env = gymnasium.make(skills.env_id(stage))
        assert (env.unwrapped.stage, env.unwrapped.max_steps) == (stage, 121)
        assert env.reset(seed=1)[0]["mission"] == codes.mission_text(env.unwrapped.mission_code)


def test_minigrids_wrappers_and_pictures_work():
    env = gymnasium.make(skills.env_id("pkp3"), render_mode="rgb_array")
    env.reset(seed=2)
    assert env.render().shape == (352, 352, 3)
    assert pictures.picture(env.unwrapped).shape == (176, 176, 3)
    assert FullyObsWrapper(env).reset(seed=2)[0]["image"].shape == (11, 11, 3)
    assert ImgObsWrapper(env).reset(seed=2)[0].shape == (7, 7, 3)
    assert RGBImgPartialObsWrapper(env, tile_size=8).reset(seed=2)[0]["image"].shape == (56, 56, 3)


def test_a_seed_determines_a_level_and_its_successors():
    env = gymnasium.make(skills.env_id("gto1")).unwrapped
    first = [env.reset(seed=9)[1]["seed"], *(env.reset()[1]["seed"] for _ in range(3))]
    again = [env.reset(seed=9)[1]["seed"], *(env.reset()[1]["seed"] for _ in range(3))]
    assert first == again
    assert len(set(first)) == 4
    with pytest.raises(ValueError, match="no stage 'x'"):
        SkillsEnv("x")


def test_words_and_codes_of_missions_are_the_same():
    for verb in (codes.GTO, codes.PKP, codes.TGL):
        for colour in range(7):
            for kind in (codes.ANY_TYPE, codes.DOOR, codes.KEY, codes.BALL, codes.BOX):
                for place in range(5):
                    mission = np.array((verb, colour, kind, place), np.uint8)
                    assert (codes.mission_code(codes.mission_text(mission)) == mission).all()
    for colour in range(6):
        mission = np.array((codes.NLM, colour, codes.GOAL, 0), np.uint8)
        assert (codes.mission_code(codes.mission_text(mission)) == mission).all()
    assert codes.mission_text(codes.mission_code("pick up a ball behind you")) == (
        "pick up the ball behind you"
    )
    rng = np.random.default_rng(0)
    for _ in range(300):
        colours, places = rng.integers(7, size=2), rng.integers(5, size=2)
        kinds = rng.choice((codes.ANY_TYPE, codes.DOOR, codes.KEY, codes.BALL, codes.BOX), 2)
        pair = [tuple(map(int, part)) for part in zip(colours, kinds, places, strict=True)]
        mission = codes.put_code(*pair)
        assert (codes.mission_code(codes.mission_text(mission)) == mission).all()
    put = codes.mission_code("put the red ball next to a door on your left")
    assert put.tolist() == [codes.PUT, 0 | 6 << 4, codes.BALL | codes.DOOR << 4, 0 | 1 << 4]
    for words in ("go to the moon", "pick up the red", "open the red door then go"):
        with pytest.raises(ValueError, match="no mission"):
            codes.mission_code(words)
    with pytest.raises(ValueError, match="no mission"):
        codes.mission_text(np.array((9, 0, 0, 0), np.uint8))
