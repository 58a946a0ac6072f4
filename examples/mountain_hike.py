"""Mountain Hike from Python: train, evaluate, and walk one hike with the belief beside the truth.

python examples/mountain_hike.py --steps 500000
"""

import argparse

import gymnasium as gym

import dvrl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--out", default="runs/example-hike")
    args = parser.parse_args()

    config = dvrl.preset("quick", "dvrl", dvrl.MountainHikeConfig(sigma=3.0), steps=args.steps)
    dvrl.train(config, args.out, display=dvrl.choose_display())
    result = dvrl.evaluate_run(args.out, episodes=100)
    print(f"return {result['return_mean']:.1f} +- {result['return_standard_error']:.1f}")

    env = gym.make("dvrl/MountainHike-v0", sigma=3.0)
    session = dvrl.load(args.out).session()
    obs, info = env.reset(seed=0)
    for t in range(75):
        action = session.act(obs)
        if t % 15 == 0:
            weights = session.last.info.log_w[0].softmax(-1)
            believed = (weights[:, None] * session.last.info.o_mean[0]).sum(0)
            print(f"step {t:2d}  at {info['position']}  seen {obs}  believed {believed.numpy()}")
        obs, _, _, _, info = env.step(action)


if __name__ == "__main__":
    main()
