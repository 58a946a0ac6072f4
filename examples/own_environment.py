"""Train an agent with a belief on an environment of your own, then play it.

python examples/own_environment.py --steps 100000
"""

import argparse

import gymnasium as gym
import numpy as np

import dvrl


class BlindCartPole(gym.ObservationWrapper):
    """CartPole without its velocities: what the agent sees now does not tell how things move."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


gym.register("BlindCartPole-v0", lambda: BlindCartPole(gym.make("CartPole-v1")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", default="runs/blind-cartpole")
    args = parser.parse_args()

    config = dvrl.preset("quick", "dvrl", dvrl.GymConfig("BlindCartPole-v0"), steps=args.steps)
    dvrl.train(config, args.out, display=dvrl.choose_display())

    env = gym.make("BlindCartPole-v0")
    session = dvrl.load(args.out).session()
    obs, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(session.act(obs))
        total, over = total + float(reward), terminated or truncated
    print(f"one episode with the trained agent: return {total:g}")


if __name__ == "__main__":
    main()
