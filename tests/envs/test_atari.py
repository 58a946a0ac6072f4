"""Atari games against an emulator that is stepped by hand, frame by frame."""

import os
import re
import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from dvrl.agents.actor_critic import ActorCritic, Choice
from dvrl.encoders.config import GruConfig
from dvrl.encoders.gru import GruBelief, GruInfo
from dvrl.envs import atari
from dvrl.envs.atari import AtariGames, rom_name
from dvrl.envs.config import AtariConfig
from dvrl.envs.gym_worlds import GymWorlds
from dvrl.envs.worlds import Step
from dvrl.nets.spaces import Spec
from dvrl.rollout.segment import advance, start
from dvrl.runs.trainer import EpisodeMeter

ale_py = pytest.importorskip("ale_py")

PAPER = {
    "Asteroids": "asteroids",
    "BeamRider": "beam_rider",
    "Bowling": "bowling",
    "Centipede": "centipede",
    "ChopperCommand": "chopper_command",
    "DoubleDunk": "double_dunk",
    "Frostbite": "frostbite",
    "IceHockey": "ice_hockey",
    "MsPacman": "ms_pacman",
    "Pong": "pong",
}
"""The ten games of the paper, and what the emulator calls them."""


class ByHand:
    """One emulator, driven as `gymnasium.wrappers.AtariPreprocessing` drives it.

    That wrapper needs OpenCV, which this package does not: its resizing, by areas, is written out
    here in exact arithmetic.
    """

    def __init__(
        self, game: str, seed: int, sticky: float = 0.0, skip: int = 4, limit: int = 10**9
    ) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(PAPER.get(game, game.lower())))
        self.choices = self.ale.getMinimalActionSet()
        self.skip = skip
        self.limit = limit
        self.frames = [self.ale.getScreenGrayscale()] * 2

    def begin(self, frame: int) -> None:
        """FIRE where there is one, then nothing up to a frame of the game."""
        self.ale.reset_game()
        if ale_py.Action.FIRE in self.choices:
            self.ale.act(ale_py.Action.FIRE)
        while self.ale.getEpisodeFrameNumber() < frame:
            self.ale.act(ale_py.Action.NOOP)
        assert self.ale.getEpisodeFrameNumber() == frame
        screen = self.ale.getScreenGrayscale()
        self.frames = [screen, np.zeros_like(screen)]
        self.played = 0

    def step(self, choice: int) -> tuple[int, bool]:
        """One decision: the score it brings, and whether the game is over."""
        score = 0
        for left in range(self.skip, 0, -1):
            score += self.ale.act(self.choices[choice])
            self.played += 1
            if self.ale.game_over() or self.played >= self.limit:
                break
            if left <= 2:
                self.frames[left - 1] = self.ale.getScreenGrayscale()
        self.frames[0] = np.maximum(*self.frames)
        return score, self.ale.game_over()

    def seen(self) -> np.ndarray:
        """`84 84` grey levels, before rounding: 2.5 rows and 40/21 columns of the screen in one."""
        rows = self.frames[0].repeat(2, 0).reshape(84, 5, 160).mean(1)
        return rows.repeat(21, 1).reshape(84, 84, 40).mean(2)

    @property
    def lives(self) -> int:
        return self.ale.lives()


def is_nearest_grey(pixels: np.ndarray, exact: np.ndarray) -> bool:
    """Rounded to bytes, with a little for the emulator's single precision at ties."""
    return bool((abs(pixels - exact) < 0.5 + 1e-3).all())


def chosen(games: VectorEnv, length: int, seed: int = 0) -> np.ndarray:
    """Random actions `T N`."""
    choices = games.single_action_space.n
    return np.random.default_rng(seed).integers(choices, size=(length, games.num_envs))


def course(games: AtariGames, length: int, seed: int = 0) -> list[np.ndarray]:
    """All that is observed and earned under random actions."""
    told = [games.reset(seed=seed)[0]]
    for action in chosen(games, length):
        told += games.step(action)[:4]
    return told


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def worlds(
    game: str, n: int = 2, seed: int = 0, flicker: float = 0.0, max_frames: int = 400_000
) -> GymWorlds:
    config = AtariConfig(game, "deterministic", flicker, max_frames)
    return config.make(n, seed, torch.device("cpu"))


def walk(worlds: GymWorlds, length: int, seed: int = 0) -> Iterator[Step]:
    """Random actions."""
    for action in chosen(worlds.envs, length, seed):
        yield worlds.step(torch.from_numpy(action))


# What is seen


@pytest.mark.parametrize(
    ("game", "sticky", "seed", "length"),
    [
        ("Pong", 0.0, 5, 200),
        ("Breakout", 0.0, 5, 200),
        ("MsPacman", 0.25, 7, 200),
        ("Breakout", 0.25, 2**31 - 1, 200),
        ("Asteroids", 0.25, 3, 200),
    ],
)
def test_screens_scores_and_ends_are_those_of_an_emulator_stepped_by_hand(
    game, sticky, seed, length
):
    games = AtariGames(game, 1, sticky)
    hand = ByHand(game, seed, sticky, skip=1 if game == "Asteroids" else 4)
    obs, info = games.reset(seed=seed)
    hand.begin(info["episode_frame_number"].item())
    assert is_nearest_grey(obs[0, 0], hand.seen())
    overs = 0
    for action in chosen(games, length, seed):
        lives = hand.lives
        obs, reward, terminated, truncated, info = games.step(action)
        score, over = hand.step(action.item())
        assert info["dvrl/score"].item() == score
        assert reward.item() == np.sign(score)
        assert info["dvrl/over"].item() == over
        assert terminated.item() == (over or hand.lives < lives)
        assert not truncated.any()
        if terminated:
            assert is_nearest_grey(info["final_obs"][0, 0], hand.seen())
        if over:
            overs += 1
            hand.begin(info["episode_frame_number"].item())
        assert is_nearest_grey(obs[0, 0], hand.seen())
        assert info["lives"].item() == hand.lives
    assert overs >= (game == "Breakout")


@pytest.mark.parametrize("game", PAPER)
def test_the_games_of_the_paper_are_played_four_frames_an_action_and_asteroids_one(game):
    assert rom_name(game) == PAPER[game]
    games = AtariGames(game, 1)
    obs, info = games.reset(seed=1)
    assert obs.shape == (1, 1, 84, 84)
    assert obs.dtype == np.uint8
    assert obs in games.observation_space
    assert len(np.unique(obs)) > 1
    set_up = 13 if game == "DoubleDunk" else 0
    assert 0 < info["episode_frame_number"].item() - set_up < atari.NOOPS
    for action in chosen(games, 8):
        before = info["episode_frame_number"]
        *_, info = games.step(action)
        assert info["episode_frame_number"] - before == (1 if game == "Asteroids" else 4)


def test_half_the_screens_are_blank_and_the_others_are_the_emulators():
    n, length = 2, 250
    games, flickering = AtariGames("Pong", n), worlds("Pong", n, flicker=0.5)
    clear, seen = [games.reset(seed=0)[0]], [flickering.reset()]
    actions = chosen(games, length)
    for action, step in zip(actions, walk(flickering, length), strict=True):
        clear.append(games.step(action)[0])
        seen.append(step.obs)
    clear, seen = torch.from_numpy(np.stack(clear)) / 255, torch.stack(seen)
    is_shown = seen.flatten(2).any(-1)
    assert torch.equal(seen[is_shown], clear[is_shown])
    assert not seen[~is_shown].any()
    assert abs(is_shown.float().mean() - 0.5) < 5 * 0.5 / sqrt(n * length)


def test_what_was_handed_out_is_not_written_over():
    games = AtariGames("Breakout", 1, max_frames=60)
    told = [*games.reset(seed=0)]
    for action in chosen(games, 20):
        told += games.step(action)
    handed = [a for t in told for a in (t.values() if isinstance(t, dict) else [t])]
    copies = [array.copy() for array in handed]
    for action in chosen(games, 40, seed=1):
        games.step(action)
    assert same(handed, copies)


# Rewards


def test_the_reward_is_the_sign_of_the_score():
    for game, magnitudes in (("MsPacman", {0, 10}), ("Skiing", {-7, -6})):
        played = worlds(game, 1)
        played.reset()
        steps = list(walk(played, 200))
        score = torch.stack([step.score for step in steps])
        assert set(score.int().flatten().tolist()) == magnitudes
        assert torch.equal(torch.stack([step.reward for step in steps]), score.sign())


def test_a_reported_return_is_what_the_games_own_counter_shows_at_its_end():
    seed = 4
    pacman = worlds("MsPacman", 1, seed)
    pacman.reset()
    steps = []
    for step in walk(pacman, 900):
        steps.append(step)
        if step.over:
            break
    score, over = (np.stack([getattr(step, name) for step in steps]) for name in ("score", "over"))
    episode, *_ = EpisodeMeter(1).add(score, over, 0)
    assert episode.length == len(steps)
    lost = sum(bool(step.terminated) for step in steps)
    assert lost == 3  # lives, of which the meter knows nothing

    games = AtariGames("MsPacman", 1)
    hand = ByHand("MsPacman", seed)
    hand.begin(games.reset(seed=seed)[1]["episode_frame_number"].item())
    ended = [hand.step(action.item())[1] for action in chosen(games, episode.length)]
    assert ended == [False] * (episode.length - 1) + [True]
    digits = [f"{byte:02x}" for byte in hand.ale.getRAM()[[122, 121, 120]]]
    assert episode.ret == int("".join(digits)) > 0


# Ends


def test_a_lost_life_ends_an_episode_of_a_game_that_goes_on():
    breakout = worlds("Breakout", 2)
    breakout.reset()
    lives, over_at = 0, []
    for t, step in enumerate(walk(breakout, 320)):
        assert not step.truncated.any()
        assert not (step.over & ~step.terminated).any()
        lives += step.terminated.int()
        over_at += [t] if step.over.any() else []
        for row in range(2):
            told = breakout.seen(step.final_obs[row]), step.obs[row]
            assert torch.equal(*told) == (not step.over[row])
        assert (lives[step.over] == 5).all()
        lives[step.over] = 0
        assert (lives < 5).all()
    assert len(over_at) >= 2


def test_a_lost_life_resets_the_belief_and_not_the_account():
    breakout, n = worlds("Breakout", 2), 2
    spec = Spec(atari.OBSERVATION_SPACE.shape, 4, discrete=True)
    encoder = GruConfig(h_dim=2, embed_dim=2).build(spec)
    agent = ActorCritic(encoder, spec.policy(encoder.feature_dim, 1.0, None))
    actions = iter(chosen(breakout.envs, 300))
    believed = []

    def act(belief: GruBelief, a_tm1, o_t) -> Choice:
        """Counts in its belief the steps since it was reset."""
        believed.append(belief.h)
        action = torch.from_numpy(next(actions))
        return Choice(GruBelief(belief.h + 1), action, agent.policy.encode(action), GruInfo())

    carry, first, score, over = start(agent, breakout), [], [], []
    for _ in range(300):
        first.append(carry.first)
        _, step, carry = advance(agent, act, breakout, carry)
        assert torch.equal(carry.first, step.terminated)
        score.append(step.score.numpy()), over.append(step.over.numpy())
    first, over = torch.stack(first), np.stack(over)
    ages = torch.stack(believed)[..., 0]
    assert torch.equal(ages == 0, first)
    assert torch.equal(ages[1:][~first[1:]], ages[:-1][~first[1:]] + 1)
    assert first[1:].sum() >= 5 * over[:-1].sum() > 0

    episodes = EpisodeMeter(n).add(np.stack(score), over, 0)
    assert len(episodes) == over.sum()
    for row in range(n):
        end = int(np.flatnonzero(over[:, row])[0])
        account = float(np.stack(score)[: end + 1, row].sum()), end + 1
        assert account in [(episode.ret, episode.length) for episode in episodes]


@pytest.mark.parametrize("max_frames", [40, 42])
def test_a_game_is_cut_after_so_many_frames_and_another_begins(max_frames):
    seed, decisions = 3, -(-max_frames // 4)
    pong = worlds("Pong", 1, seed, max_frames=max_frames)
    hand = ByHand("Pong", seed, limit=max_frames)
    games = AtariGames("Pong", 1, max_frames=max_frames)
    hand.begin(games.reset(seed=seed)[1]["episode_frame_number"].item())
    pong.reset()
    for t, (action, step) in enumerate(
        zip(chosen(games, decisions), walk(pong, decisions), strict=True)
    ):
        *_, info = games.step(action)
        hand.step(action.item())
        cut = t == decisions - 1
        assert (step.truncated, step.over, pong.cut, step.terminated) == (cut, cut, cut, False)
        assert is_nearest_grey(step.final_obs[0, 0].numpy(), hand.seen())
    hand.begin(info["episode_frame_number"].item())
    assert is_nearest_grey(step.obs[0, 0].numpy() * 255, hand.seen())
    assert not torch.equal(step.obs, pong.seen(step.final_obs))


def test_a_life_lost_in_the_frame_that_ends_the_time_is_no_cut():
    def played(max_frames: int) -> tuple[int, Step, GymWorlds]:
        breakout = worlds("Breakout", 1, seed=5, max_frames=max_frames)
        breakout.reset()
        for t in range(60):
            step = breakout.step(torch.zeros(1).long())
            if step.terminated | step.truncated:
                return t + 1, step, breakout
        raise AssertionError("no end")

    decisions, step, _ = played(400_000)
    assert not step.over
    again, step, breakout = played(4 * decisions)
    assert again == decisions
    assert (step.terminated, step.truncated, step.over, breakout.cut) == (True, False, True, False)


# Names and refusals


@pytest.mark.parametrize("name", ["MsPacman", "ms_pacman", "mspacman", "Ms_Pacman", "MSPACMAN"])
def test_a_game_has_one_name_however_it_is_written(name):
    assert rom_name(name) == "ms_pacman"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ALE/Pong-v5", "there is no Atari game 'ALE/Pong-v5'; did you mean Pong?"),
        ("Pongg", "there is no Atari game 'Pongg'; did you mean Pong?"),
        ("Chopper", "there is no Atari game 'Chopper'; did you mean ChopperCommand or Gopher?"),
        ("Go", "there is no Atari game 'Go'; names look like Pong or MsPacman"),
        ("Joust", "the emulator has the game 'Joust' but does not know how to play it"),
    ],
)
def test_a_game_that_cannot_be_played_is_told_in_a_sentence(name, sentence):
    for ask in (rom_name, lambda name: AtariConfig(name).spaces(), worlds):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            ask(name)


def test_actions_the_game_does_not_have_are_refused_and_play_goes_on():
    games = AtariGames("Pong", 2)
    games.reset(seed=0)
    for actions in ([0, 6], [-1, 0], [0], [0, 0, 0], [[0, 0]], [0.0, 1.0]):
        told = f"the actions are {actions}; they must be 2 whole numbers, each at least 0 and"
        with pytest.raises(ValueError, match=f"^{re.escape(told)} below 6$"):
            games.step(np.array(actions))
        games.step(np.array([0, 5], np.int32))


@pytest.mark.parametrize("missing", ["ale_py", "ale_py.vector_env"])
def test_without_the_emulator_one_sentence_says_how_to_install_it(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    told = "Atari worlds need the package ale_py: pip install 'dvrl[atari]'"
    for ask in (AtariConfig().spaces, lambda: worlds("Pong")):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            ask()


# Chance


def test_one_seed_gives_one_course_whatever_was_before_and_another_seed_another():
    games = AtariGames("Breakout", 1, sticky=0.25)
    first = course(games, 60, seed=0)  # also 0 is a seed
    assert not same(first, course(games, 60, seed=2))
    assert same(first, course(games, 60, seed=0))
    assert same(first, course(AtariGames("Breakout", 1, sticky=0.25), 60, seed=0))


@pytest.mark.parametrize(("seed", "within"), [(-1, 2**31 - 1), (2**40 + 7, 7)])
def test_any_number_is_a_seed(seed, within):
    games = AtariGames("Breakout", 1)
    assert same(course(games, 20, seed), course(games, 20, within))


def test_every_world_is_the_game_with_seed_plus_row_played_alone(monkeypatch):
    n, seed, length = 2, 7, 60

    def screens(games: AtariGames, actions: np.ndarray, seed: int) -> np.ndarray:
        first = games.reset(seed=seed)[0]
        return np.stack([first, *(games.step(action)[0] for action in actions)])

    actions = np.random.default_rng(0).integers(4, size=(length, n))
    together = []
    for cores in (1, 2):  # whatever the number of threads
        monkeypatch.setattr(atari, "_cores", lambda cores=cores: cores)
        together.append(screens(AtariGames("Breakout", n, sticky=0.25), actions, seed))
    games = AtariGames("Breakout", 1, sticky=0.25)
    alone = [screens(games, actions[:, [row]], seed + row) for row in range(n)]
    assert np.array_equal(together[0], np.concatenate(alone, 1))
    assert np.array_equal(*together)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks Linux where threads may run")
@pytest.mark.parametrize("cores", [1, len(getattr(os, "sched_getaffinity", lambda _: "1")(0))])
def test_threads_keep_to_a_core_each_only_where_they_have_the_whole_machine(monkeypatch, cores):
    threads = Path("/proc/self/task")
    before = {thread.name for thread in threads.iterdir()}
    monkeypatch.setattr(atari, "_cores", lambda: cores)
    games = AtariGames("Breakout", cores)
    own = sorted({thread.name for thread in threads.iterdir()} - before, key=int)
    places = [os.sched_getaffinity(int(thread)) for thread in own]
    games.close()
    assert len(own) == cores
    whole = cores == os.cpu_count()
    assert places == ([{i} for i in range(cores)] if whole else [os.sched_getaffinity(0)] * cores)


@pytest.mark.parametrize("flicker", [0.0, 0.5])
def test_emulators_step_apart_from_all_else(flicker):
    assert AtariConfig("Pong", flicker=flicker).make(2, 0, torch.device("cpu")).apart


def test_worlds_of_one_batch_and_of_the_next_differ():
    pacman = worlds("MsPacman", 2, seed=1)  # of only thirty starts, four different ones
    starts = [pacman.reset()]
    pacman.restore(pacman.state())
    starts.append(pacman.reset())
    assert len({screen.numpy().tobytes() for screen in torch.cat(starts)}) == 4


def test_actions_stick_in_the_stochastic_variant_only():
    def played(variant: str) -> list[torch.Tensor]:
        breakout = AtariConfig("Breakout", variant, 0.0).make(1, 0, torch.device("cpu"))
        return [breakout.reset(), *(step.obs for step in walk(breakout, 60))]

    free = played("deterministic")
    assert all(map(torch.equal, free, played("deterministic")))
    assert not all(map(torch.equal, free, played("stochastic")))


# Housekeeping


def test_other_vector_environments_keep_their_own_mode():
    games = AtariGames("Pong", 1)
    assert games.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in VectorEnv.metadata


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted by Linux")
def test_closed_games_leave_no_threads():
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    pong = worlds("Pong", 2)
    running = threads()
    pong.reset()
    pong.envs.close()
    pong.envs.close()
    assert threads() < running


def test_a_game_may_be_as_long_as_the_emulator_can_count():
    longest = AtariConfig("Pong", max_frames=2**31 - 1)
    assert longest.make(1, 0, torch.device("cpu")).reset().shape == (1, 1, 84, 84)
    with pytest.raises(ValueError, match=r"max_frames is 2147483648; it must be below 2\*\*31"):
        AtariConfig("Pong", max_frames=2**31)
