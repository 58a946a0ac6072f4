"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dvrl import cli

TINY = [
    *("--preset", "quick", "--encoder.h-dim", "8", "--encoder.embed-dim", "4"),
    *("--learner.n-envs", "2", "--steps", "200", "--log-every", "100", "--device", "cpu"),
    *("--learner.anneal-steps", "200"),
]


def config(capsys, *argv: str) -> dict:
    assert cli.main(["train", "mountain-hike", *argv, "--print-config"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("agent", "parameters"), [("dvrl", 466_889), ("rnn", 301_765)])
def test_the_paper_preset_has_the_papers_sizes_and_constants(agent, parameters, capsys):
    shown = config(capsys, "--agent", agent, "--preset", "paper")
    assert shown["parameters"] == parameters
    learner = shown["learner"]
    assert (learner["n_envs"], learner["n_steps"], learner["n_grad"]) == (16, 5, 25)
    assert (learner["lr"], learner["gamma"], learner["clip_norm"]) == (1e-4, 0.99, 0.5)
    weights = [learner[f"{name}_weight"] for name in ("entropy", "value", "elbo")]
    assert weights == [0.01, 0.5, 1.0]
    assert not learner["bootstrap_cuts"]
    assert learner["reward_scale"] == 1.0


@pytest.mark.parametrize("preset", ["paper", "tuned", "quick"])
def test_both_agents_of_a_preset_differ_in_the_encoder_alone(preset, capsys):
    dvrl, rnn = (config(capsys, "--agent", a, "--preset", preset) for a in ("dvrl", "rnn"))
    changed = {name for name in dvrl if dvrl[name] != rnn[name]}
    assert changed == {"encoder", "parameters"}


@pytest.mark.parametrize(("agent", "parameters"), [("dvrl", 4_336_264), ("rnn", 1_557_767)])
def test_the_paper_preset_of_a_game_has_the_papers_sizes_and_constants(agent, parameters, capsys):
    argv = ["--agent", agent, "--preset", "paper", "--variant", "deterministic", "--print-config"]
    assert cli.main(["train", "atari:Pong", *argv]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["parameters"] == parameters
    assert shown["world"] == {
        "kind": "AtariConfig", "game": "Pong", "variant": "deterministic", "flicker": 0.5,
        "max_frames": 400_000,
    }  # fmt: skip
    learner = shown["learner"]
    assert (learner["n_envs"], learner["n_steps"], learner["n_grad"]) == (16, 5, 50)
    assert (learner["gamma"], learner["clip_norm"], learner["elbo_weight"]) == (0.99, 0.5, 0.1)


@pytest.mark.parametrize("spelled", ["MsPacman", "ms_pacman", "Ms Pacman"])
def test_a_run_of_a_game_is_called_after_it(spelled, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["train", f"atari:{spelled}", "--agent", "rnn", *TINY, "--steps", "20"]
    assert cli.main(argv) == 0
    assert (tmp_path / "runs/mspacman-stochastic-rnn-quick-s0/config.json").exists()
    assert cli.main(["train", "atari:Pong", "--world.game", spelled, "--print-config"]) == 0
    assert '"game": "MsPacman"' in capsys.readouterr().out


def test_nested_flags_change_the_preset(capsys):
    flags = ["--sigma", "1.5", "--encoder.n-particles", "7", "--learner.no-bootstrap-cuts"]
    shown = config(capsys, *flags, "--seed", "4", "--steps", "1_000")
    assert shown["world"]["sigma"] == 1.5
    assert shown["encoder"]["n_particles"] == 7
    assert shown["learner"]["bootstrap_cuts"] is False
    assert (shown["seed"], shown["steps"]) == (4, 1000)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--learner.n-grad", "12"], "multiple of n_steps"),
        (["--encoder.n-particles", "0"], "at least 1"),
        (["--sigma", "-1"], "not below 0"),
        (["--sigma", "nan"], "not below 0"),
        (["--learner.lr", "nan"], "not below 0"),
        (["--learner.gamma", "1.5"], "between 0 and 1"),
        (["--encoder.n-partcles", "3"], "--encoder.n-particles"),
        (["--agent", "dqn"], "there are dvrl, rnn"),
        (["--preset", "best"], "there are paper, tuned, quick"),
        (["--steps", "0"], "at least 1"),
        (["--threads", "0"], "at least 1"),
        (["--steps", "-5"], "steps is -5; it must be at least 1"),
        (["--seed", "-1"], "seed is -1; it must be at least 0"),
        (["--encoder.batch-norm", "--learner.n-envs", "1"], "batch norm centres over environments"),
    ],
)
def test_bad_flags_exit_with_2_and_say_what_would_be_right(flags, words, capsys, tmp_path):
    argv = ["train", "mountain-hike", *flags, "--out", str(tmp_path / "run")]
    try:
        code = cli.main(argv)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fly"], "there is no command 'fly'"),
        (["train"], "needs a world"),
        (["train", "moon"], "there is no world 'moon'"),
        (["train", "gym:NoSuch-v0"], "Gymnasium cannot make"),
        (["train", "atari:"], "there is no world 'atari:'"),
        (["train", "atari:Pnog"], "there is no Atari game 'Pnog'; did you mean Pong?"),
        (["evaluate", "nowhere"], "nowhere does not exist"),
        (["show", "."], "has no config.json"),
        (["predict", "."], "has no config.json"),
        (["predict", "nowhere"], "nowhere does not exist"),
        (["predict", ".", "--rows", "0"], "rows is 0; it must be at least 1"),
        (["train", "atari:Pong", "--world.game", "Pnog"], "there is no Atari game 'Pnog'"),
    ],
)
def test_what_does_not_exist_is_named(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_train_evaluate_show(capsys, tmp_path):
    run = tmp_path / "run"
    assert cli.main(["train", "mountain-hike", *TINY, "--out", str(run)]) == 0
    assert "dvrl show" in capsys.readouterr().out
    assert cli.main(["evaluate", str(run), "--episodes", "3", "--particles", "9"]) == 0
    assert json.loads(capsys.readouterr().out)["particles"] == 9
    assert cli.main(["show", str(run)]) == 0
    shown = [Path(line) for line in capsys.readouterr().out.split()]
    assert [p.name for p in shown] == ["curve.png", "hike.png", "report.html"]
    assert all(p.stat().st_size > 10_000 for p in shown)


@pytest.mark.parametrize(("agent", "predicts"), [("dvrl", True), ("rnn", False)])
def test_train_predict_show_evaluate_a_game(agent, predicts, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("dvrl.runs.inspect.STEPS", 8)
    run = tmp_path / "run"
    tiny = ["--agent", agent, *TINY, "--steps", "20", "--world.max-frames", "120"]
    assert cli.main(["train", "atari:Pong", *tiny, "--out", str(run)]) == 0
    capsys.readouterr()
    code = cli.main(["predict", str(run), "--steps", "9", "--rows", "2"])
    said = capsys.readouterr()
    names = ["predictions.png", "particles.png", "belief.gif"]
    if predicts:
        assert code == 0
        assert said.out.split() == [str(run / "plots" / name) for name in names]
    else:
        assert code == 2
        assert "has no model to predict with" in said.err
    assert cli.main(["show", str(run)]) == 0
    shown = [Path(line).name for line in capsys.readouterr().out.split()]
    drawn = names[:2] if predicts else []
    assert shown == ["curve.png", "episode.gif", *drawn, "report.html"]
    assert cli.main(["evaluate", str(run), "--episodes", "2"]) == 0
    said = capsys.readouterr()
    assert 50 <= json.loads(said.out)["decisions"] <= 62
    assert not said.err  # there is no terminal to watch on


def test_a_hike_is_shown_not_predicted(capsys, tmp_path):
    argv = ["train", "mountain-hike", *TINY, "--out", str(tmp_path)]
    assert cli.main(argv) == 0
    assert cli.main(["predict", str(tmp_path)]) == 2
    assert "of hikes, dvrl show draws the belief" in capsys.readouterr().err


def test_another_config_in_the_same_directory_exits_with_2(capsys, tmp_path):
    argv = ["train", "mountain-hike", *TINY, "--out", str(tmp_path)]
    assert cli.main(argv) == 0
    assert cli.main([*argv, "--seed", "1"]) == 2
    assert "seed: 0 -> 1" in capsys.readouterr().err


def test_a_failed_run_exits_with_1(capsys, tmp_path):
    argv = ["train", "mountain-hike", *TINY, "--out", str(tmp_path)]
    assert cli.main(argv) == 0
    for manifest in tmp_path.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    assert cli.main([*argv, "--steps", "400"]) == 1
    assert "no whole checkpoint" in capsys.readouterr().err


def test_the_learning_rate_falls_over_the_steps_asked_for(capsys):
    assert config(capsys, "--steps", "1_234")["learner"]["anneal_steps"] == 1234
    flags = ["--steps", "100", "--learner.anneal-steps", "7"]
    assert config(capsys, *flags)["learner"]["anneal_steps"] == 7
    assert config(capsys, "--preset", "paper", "--steps", "9")["learner"]["anneal_steps"] is None


def test_evaluate_and_show_say_in_a_sentence_that_a_checkpoint_is_damaged(capsys, tmp_path):
    argv = ["train", "mountain-hike", *TINY, "--out", str(tmp_path)]
    assert cli.main(argv) == 0
    for manifest in tmp_path.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    for command in ("evaluate", "show"):
        assert cli.main([command, str(tmp_path)]) == 1
        assert "no whole checkpoint" in capsys.readouterr().err


def test_help_loads_neither_torch_nor_matplotlib():
    code = (
        "import sys; from dvrl import cli\n"
        "try: cli.main(['train', 'mountain-hike', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--encoder.n-particles" in done.stdout


def test_output_in_a_pipe_is_plain_lines(tmp_path):
    argv = [sys.executable, "-m", "dvrl.cli", "train", "mountain-hike", *TINY]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*argv, "--out", str(tmp_path)], capture_output=True, text=True, env=env, check=True
    )
    assert "\x1b" not in done.stdout
    assert "step 200 of 200" in done.stdout


# Several runs, engines, benchmarks


def test_seeds_train_side_by_side_and_each_run_is_as_if_alone(tmp_path, capsys):
    arguments = ["train", "mountain-hike", "--agent", "rnn", "--steps", "700", "--device", "cpu"]
    assert cli.main([*arguments, "--seeds", "0-1,3", "--out", str(tmp_path / "many")]) == 0
    assert cli.main([*arguments, "--seed", "3", "--out", str(tmp_path / "alone")]) == 0
    assert sorted(p.name for p in (tmp_path / "many").iterdir()) == ["s0", "s1", "s3"]
    together, alone = tmp_path / "many" / "s3", tmp_path / "alone"
    files = ["metrics.jsonl", "episodes.csv"]
    [checkpoint] = (alone / "checkpoints").glob("step-*")
    files += [f"checkpoints/{checkpoint.name}/{n}.safetensors" for n in ("weights", "state")]
    for name in files:
        assert (together / name).read_bytes() == (alone / name).read_bytes(), name
    assert "s1  finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ("0-x", "must look like 0-4 or 1,3,7"),
        ("", "must look like"),
        ("4-0", "must go upwards"),
        ("1,1", "named once"),
    ],
)
def test_seeds_that_make_no_sense_are_refused(seeds, words, capsys):
    assert cli.main(["train", "mountain-hike", "--seeds", seeds]) == 2
    assert words in capsys.readouterr().err


def test_one_seed_or_several_but_not_both(capsys):
    for seed in (["--seed", "3"], ["--seed=3"]):
        assert cli.main(["train", "mountain-hike", "--seeds", "0-1", *seed]) == 2
        assert "both --seed and --seeds" in capsys.readouterr().err


def test_several_runs_do_not_train_inside_a_run(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["train", "mountain-hike", "--seeds", "0-1", "--out", str(tmp_path)]) == 2
    assert "is a run itself" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_of_processes_that_make_the_same_mistake_one_tells(capsys, monkeypatch):
    for rank, told in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        assert cli.main(["train", "nowhere"]) == 2
        assert bool(capsys.readouterr().err) is told


def test_a_graph_without_a_gpu_is_refused_before_anything_is_written(tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["train", "mountain-hike", "--engine", "graph", "--device", "cpu"]
    assert cli.main([*arguments, "--out", str(out)]) == 2
    assert "needs a GPU; use --engine auto" in capsys.readouterr().err
    assert not out.exists()


def test_the_benchmark_prints_a_row_for_every_cell_and_writes_them(tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = ["bench", "hike", "--preset", "quick", "--particles", "1,2", "--envs", "2"]
    arguments += ["--runs", "1,2", "--repeats", "2", "--seconds", "0.01", "--device", "cpu"]
    assert cli.main([*arguments, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    cells = [(r["agent"], r["particles"], r["runs"]) for r in result["rows"]]
    dvrl = [("dvrl", k, r) for k in (1, 2) for r in (1, 2)]
    assert cells == [*dvrl, ("rnn", None, 1), ("rnn", None, 2)]
    for row in result["rows"]:
        assert 0 < row["lowest"] <= row["steps_per_second"] <= row["highest"]
        update = row["envs"] * 5 * row["runs"] / row["steps_per_second"] * 1e3
        assert row["ms_per_update"] == pytest.approx(update)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(cells) + 3


def test_a_game_is_measured_beside_its_emulators(tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = ["bench", "atari", "--preset", "quick", "--agents", "rnn", "--envs", "2"]
    measured = ["--repeats", "1", "--seconds", "0.2", "--device", "cpu", "--out", str(out)]
    assert cli.main([*arguments, *measured]) == 0
    alone, training = json.loads(out.read_text())["rows"]
    assert alone["agent"] == "emulator"
    share = training["steps_per_second"] / alone["steps_per_second"]
    assert training["of_emulator"] == pytest.approx(share)
    assert 0 < share < 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("of emulator")
    assert lines[1].startswith("emulator")
    assert lines[2].endswith(f"{share:.2f}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "dvrl bench hike"),
        (["atari", "--game", "Nothing"], "there is no Atari game 'Nothing'"),
        (["atari", "--envs", "0"], "envs is '0'; it must be whole numbers above 0"),
        (["atari", "--envs", "16,1"], "batch norm centres over environments"),
        (["check", "--only", "nothing"], "no check has a name like 'nothing'"),
        (["check", "--only", "("], "no regular expression"),
        (["hike", "--particles", "0"], "whole numbers above 0"),
        (["hike", "--envs", "a"], "whole numbers above 0"),
        (["hike", "--agents", "drqn"], "there is no agent 'drqn'"),
        (["hike", "--repeats", "0"], "repeats is 0; it must be at least 1"),
        (["hike", "--threads", "0"], "threads is 0; it must be at least 1"),
        (["hike", "--seconds", "0"], "seconds is 0; it must be above 0"),
        (["hike", "--seconds", "nan"], "seconds is nan; it must be above 0"),
        (["hike", "--out", "."], ". is a directory"),
    ],
)
def test_a_benchmark_of_nothing_is_refused(arguments, words, capsys, tmp_path):
    assert cli.main(["bench", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert not said.out


def test_bench_explains_itself_and_check_wants_a_gpu(capsys, monkeypatch):
    assert cli.main(["bench", "--help"]) == 0
    assert "dvrl bench check" in capsys.readouterr().out
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["bench", "check"]) == 2
    assert "torch sees none here" in capsys.readouterr().err
