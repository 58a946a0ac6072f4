"""The command line: `dvrl COMMAND ...`. It chooses a command and turns errors into sentences."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version

from dvrl.commands.bench import bench
from dvrl.commands.look import evaluate, predict, show
from dvrl.commands.train import train
from dvrl.runs.errors import Interrupted, RunFailed, UsageError

USAGE = """\
usage: dvrl COMMAND ...

Deep variational reinforcement learning: agents that act on a learned belief.

  dvrl train WORLD    train an agent; the same command again continues an unfinished run
  dvrl evaluate RUN   play a run's agent with frozen weights and print what it earns
  dvrl show RUN       draw a run's learning curve and what it sees, and build its page
  dvrl predict RUN    draw what a run's agent expects to see next, where it sees images
  dvrl bench WHAT     measure this machine: hike, atari (training speed), check (engines agree)

WORLD is mountain-hike, atari:GAME for a flickering Atari game (atari:Pong), or gym:ID for a
Gymnasium environment (gym:CartPole-v1).
`dvrl COMMAND --help` lists the flags of a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    # A queue on the GPU for every run side by side; CUDA reads it when it starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"dvrl: {message}\n"
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "evaluate": evaluate,
        "show": show,
        "predict": predict,
        "bench": bench,
    }
    if argv == ["--version"]:
        print(f"dvrl {version('dvrl')}")
        return 0
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] not in commands:
        return complain(f"there is no command {argv[0]!r}; there are {', '.join(commands)}")
    try:
        return commands[argv[0]](argv[1:])
    except KeyboardInterrupt:
        saved = "; what was saved before is whole" if argv[0] == "train" else ""
        print(f"stopped at once{saved}", file=sys.stderr)
        return 130
    except UsageError as error:
        # Of processes that train together all make the same mistake: one tells.
        return complain(str(error)) if os.environ.get("RANK", "0") == "0" else 2
    except RunFailed as failure:
        return complain(str(failure), code=1)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        return 141
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}", code=1)


def complain(sentence: str, code: int = 2) -> int:
    print(f"dvrl: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
