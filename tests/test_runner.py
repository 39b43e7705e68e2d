"""The runner's promises: what is done and left, why a job failed, one runner a study, no process left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from lad_utils import progress, runner
from lad_utils.params import REPOSITORY, load_study

SAID = """\
Job stats:
job        count
-------  -------
oracle         2
report         1
all            1
total          4

[Mon Nov 30 14:24:00 2026]
rule oracle:
    input: rollouts/score.parquet
    output: runs/main/random/run.json
    log: notebooks/05_grpo_oracle/main-random.ipynb, notebooks/05_grpo_oracle/main-random.txt
    jobid: 1
    reason: Missing output files: runs/main/random/run.json
    wildcards: arm=main, cohort=random
    threads: 1
    resources: tmpdir=/tmp
[Mon Nov 30 14:24:00 2026]
rule oracle:
    jobid: 2
    wildcards: arm=main, cohort=labels_wrong_60
[Mon Nov 30 14:25:00 2026]
Finished jobid: 1 (Rule: oracle)
1 of 4 steps (25%) done
"""
FAILS = """\
Error in rule oracle:
    message: None
    jobid: 2
    shell:
        python -m papermill
"""


def told(text: str, *, state=None, now=0.0):
    """The events of a text, and the state after it."""
    state = state or progress.Progress()
    return [e for line in text.splitlines() if (e := state.feed(line, now=now))], state


def fake_study(**values):
    return load_study("smoke").model_copy(update=values)


def test_a_finished_job_is_named_by_rule_and_wildcards_and_the_others_still_run():
    events, state = told(SAID)
    assert [name for name, _ in events] == ["planned", "finished"]
    assert state.planned == Counter(oracle=2, report=1)  # the target rule `all` is no work
    assert progress.name_of(events[1][1]) == "05_grpo_oracle main/random"
    assert [progress.name_of(job) for job in state.running.values()] == ["05_grpo_oracle main/labels_wrong_60"]


def test_a_restarted_job_is_no_failure_until_snakemake_gives_up():
    _, state = told(SAID)
    events, state = told(FAILS + "Trying to restart job 2.\n", state=state)
    assert [name for name, _ in events] == ["retried"] and not state.failed
    events, state = told("rule oracle:\n    jobid: 2\n    wildcards: arm=main, cohort=labels_wrong_60\n", state=state)
    events, state = told(FAILS + "Shutting down, this might take some time.\n", state=state)
    assert [name for name, _ in events] == ["stopping"]
    assert progress.notebook_log(state.failed["2"]) == "notebooks/05_grpo_oracle/main-labels_wrong_60"


def test_a_job_that_ends_without_its_output_has_failed_and_the_file_is_named():
    text = "Job 2  completed successfully, but some output files are missing. Missing files after 5 seconds.\n"
    _, state = told(SAID)
    _, state = told(text + "runs/main/x/run.json (missing locally, parent dir not present)\n", state=state)
    unwritten = state.unwritten(state.failed["2"])
    assert unwritten == ["runs/main/x/run.json"]
    assert progress.failure_line(Path("06_loco"), unwritten=unwritten) == "it ended without writing runs/main/x/run.json"


def test_jobs_are_counted_from_the_study_and_a_rule_needs_those_before_it_only():
    sizes = {"size_draws": 2, "size_distinct": [2, 4], "size_steps": [4]}
    study = fake_study(cohorts=["a", "b", "c"], causal_cohorts=["d"], selection_cohorts=[], **sizes)
    # main, a selection, sizes, three mixtures, short and small runs on both, two trainers on two cohorts, two samplers
    jobs = 3 + 1 + 2 * 2 + 3 + 2 * (3 + 3) + 2 * 2 + 2
    assert progress.count_jobs(study).total() == jobs + len(progress.NOTEBOOKS) - 1
    assert progress.count_jobs(study, until="oracle") == Counter(base=1, cohorts=1, rollouts=1, oracle=jobs)
    none = {"causal_cohorts": [], "selection_cohorts": [], "size_draws": 0, "mixture_seeds": [], "short_steps": 0}
    none["smaller_model"] = ""
    without = progress.count_jobs(fake_study(cohorts=["a", "b", "c"], trainers=[], samplers=[], **none))
    assert "causal" not in without and without["oracle"] == 3


def test_time_left_shares_one_thread_jobs_over_the_cores_and_credits_running_ones():
    seconds = {"rollouts": 60.0, "oracle": 90.0, "report": 10.0}
    # 60 s on all cores; 4 x 90 s less 30 s already run, over 2 cores; one report can't be shared
    pending = Counter(rollouts=1, oracle=4, report=1)
    assert progress.remaining_seconds(pending, [("oracle", 30.0)], seconds, cores=2) == 60 + (4 * 90 - 30) / 2 + 10
    # a job that takes longer than expected never makes the time left negative
    assert progress.remaining_seconds(Counter(oracle=1), [("oracle", 500.0)], seconds, cores=2) == 0


def test_every_rule_has_a_prior_and_training_scales_with_its_work():
    study = fake_study(grpo_steps=64, grpo_prompts_per_step=8, grpo_generations=8, seeds=[0, 1])
    assert progress.prior_seconds(study).keys() == progress.NOTEBOOKS.keys() == progress.NEEDS.keys()
    assert 80 < progress.prior_seconds(study)["oracle"] < 100


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (372, "6:12"), (3723, "1:02:03")])
def test_clock(seconds, text):
    assert progress.clock(seconds) == text


def executed(path: Path, *outputs, **papermill) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"cell_type": "code", "outputs": list(outputs)}]
    path.with_suffix(".ipynb").write_text(json.dumps({"cells": cells, "metadata": {"papermill": papermill}}))
    return path


def test_a_failure_is_told_by_the_notebooks_last_exception_in_one_line(tmp_path):
    error = {"output_type": "error", "ename": "ValueError", "evalue": "row 3:\n\x1b[31mno answer\x1b[0m", "traceback": []}
    stem = executed(tmp_path / "06_loco", error)
    assert progress.failure_line(stem) == "ValueError: row 3: no answer"


def test_a_failure_without_exception_in_the_notebook_is_told_by_papermills_last_words(tmp_path):
    stem = executed(tmp_path / "main-band_0.5")
    assert progress.failure_line(stem) == "it was ended before it said why"
    (tmp_path / "main-band_0.5.txt").write_text("Executing Cell 1----\nnbclient.exceptions.DeadKernelError: Kernel died\n\n")
    assert progress.failure_line(stem) == "nbclient.exceptions.DeadKernelError: Kernel died"


def test_seconds_of_earlier_runs_are_read_but_not_those_of_failed_ones(tmp_path):
    executed(tmp_path / "notebooks/05_grpo_oracle/main-a", duration=80.0, exception=None)
    executed(tmp_path / "notebooks/05_grpo_oracle/main-b", duration=3.0, exception=True)
    executed(tmp_path / "notebooks/06_loco", duration=None, exception=None)
    assert progress.measured_before(tmp_path) == {"oracle": [80.0]}


def sleeper(mark: Path) -> subprocess.Popen:
    """A marked process with a child that dropped the mark."""
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60'], env={}); print(p.pid, flush=True); p.wait()"
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code], env=os.environ | {runner.MARK: str(mark)}, stdout=subprocess.PIPE, text=True
    )


def test_orphans_of_this_study_end_with_their_children_and_those_of_another_study_live(tmp_path):
    ours, other = sleeper(tmp_path / "micro"), sleeper(tmp_path / "micro-reference")
    try:
        child = int(ours.stdout.readline())
        other.stdout.readline()
        assert runner.end_processes(tmp_path / "micro") == 2
        for ended in (ours.pid, child):
            assert not psutil.pid_exists(ended) or psutil.Process(ended).status() == psutil.STATUS_ZOMBIE
        assert other.poll() is None
        assert runner.end_processes(tmp_path / "micro") == 0
    finally:
        runner.end_processes(tmp_path / "micro-reference")
        ours.stdout.close()
        other.stdout.close()
        other.wait(timeout=5)


def test_the_runner_spares_itself_and_what_it_runs_in(tmp_path):
    code = f"from lad_utils import runner; from pathlib import Path; print(runner.end_processes(Path({str(tmp_path)!r})))"
    environment = os.environ | {runner.MARK: str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["sh", "-c", f'{sys.executable} -c "{code}"; :'], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stderr


def test_one_runner_a_study_and_the_lock_goes_with_its_process(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LAD_OUTPUTS", str(tmp_path))
    code = f"from lad_utils import runner; import time; from pathlib import Path; p = Path({str(tmp_path / 'smoke')!r})\n"
    code += "p.mkdir(); h = runner.own_study(p); print('owned', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )
    try:
        assert holder.stdout.readline() == "owned\n"
        assert runner.run("smoke", cores=1, until="base") == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1 and "'smoke' is already being run" in said.err and not said.out
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    handle = runner.own_study(tmp_path / "smoke")
    assert handle is not None
    os.close(handle)


def test_a_wrong_study_or_setting_ends_in_one_line_and_exit_code_2(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LAD_OUTPUTS", str(tmp_path))
    assert runner.run("mikro", cores=1, until="report") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "mikro" in said and "smoke" in said
    assert not list(tmp_path.iterdir()), "a refused study leaves no folder"
    with pytest.raises(SystemExit) as stopped:
        runner.main(["smoke", "--cores", "0"])
    assert stopped.value.code == 2


def test_a_slurm_profile_without_slurm_and_an_unknown_profile_end_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LAD_OUTPUTS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for profile, told in (("slurm", "not found: sbatch, squeue, scancel"), ("slrum", "profiles: local, slurm")):
        assert runner.run("smoke", cores=1, until="base", profile=profile) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"profile {profile!r}" in said and told in said
    assert not list(tmp_path.iterdir()), "a refused study leaves no folder"


def test_names_of_slurm_jobs_tell_the_study_and_its_folder_and_are_valid():
    names = {runner.slurm_prefix(Path(f"/{top}/{study}")) for top in "ab" for study in ("smoke", "qwen2.5-1.5b" + "-gsm8k" * 9)}
    assert len(names) == 4 and all(re.fullmatch("lad-[A-Za-z0-9-]{1,46}", name) for name in names)  # what the plugin takes


def slurm_stand_in(monkeypatch, folder: Path, squeue: str):
    """Put a `squeue` and a `scancel` on PATH that touches `cancelled`."""
    for name, script in (("squeue", squeue), ("scancel", f"echo $@ >> {folder}/cancelled")):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_only_this_studys_slurm_jobs_are_cancelled_and_waited_for(monkeypatch, tmp_path):
    name = runner.slurm_prefix(tmp_path / "smoke")
    jobs = [f"echo 7 {name}_u", "echo 8 lad-smoke-000000000000_u", "echo 9 sh"]
    slurm_stand_in(monkeypatch, tmp_path, f"[ -e {tmp_path}/cancelled ] || {{ {'; '.join(jobs)}; }}")
    assert runner.cancel_slurm(tmp_path / "smoke") == 1
    assert (tmp_path / "cancelled").read_text() == "7\n"
    slurm_stand_in(monkeypatch, tmp_path, f"echo 7 {name}_u")
    with pytest.raises(OSError, match="Slurm jobs 7: expected to end within 0 s"):
        runner.cancel_slurm(tmp_path / "smoke", within=0)


def test_a_study_does_not_start_while_slurm_does_not_say_what_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LAD_OUTPUTS", str(tmp_path))
    (tmp_path / "smoke" / ".snakemake" / "slurm_logs").mkdir(parents=True)  # it once ran in Slurm
    slurm_stand_in(monkeypatch, tmp_path, "echo slurm_load_jobs error >&2; exit 1")
    assert runner.run("smoke", cores=1, until="base") == 2
    assert capsys.readouterr().err == "squeue: expected a list of this study's jobs, found: slurm_load_jobs error\n"


def test_time_left_on_gpus_shares_them_not_the_cores():
    pending, seconds = Counter(oracle=4, loco=1), {"oracle": 90.0, "loco": 10.0}
    assert progress.remaining_seconds(pending, [], seconds, cores=16, gpus=2) == 4 * 90 / 2 + 10


TOY = """
rule all:
    input: "a"
rule base:
    output: "a"
    log: notebook="notebooks/00_micro_base.ipynb", text="notebooks/00_micro_base.txt"
    shell: "{command}"
"""


def toy_command(monkeypatch, folder: Path, command: str):
    """Let the runner start a snakemake of one shell job instead of a study's notebooks."""
    (folder / "Toy").write_text(TOY.replace("{command}", command))
    start = subprocess.Popen

    def popen(arguments, **options):
        arguments[arguments.index("--snakefile") + 1] = str(folder / "Toy")
        return start(arguments, **options)

    monkeypatch.setattr(runner.subprocess, "Popen", popen)


def test_a_job_that_fails_twice_is_told_with_its_last_words_and_exit_code_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LAD_OUTPUTS", str(tmp_path))
    toy_command(monkeypatch, tmp_path, "echo KeyError: no such cohort > {log.text}; exit 1")
    assert runner.run("smoke", cores=1, until="base") == 1
    said = capsys.readouterr()
    assert "00_micro_base failed once and is tried again: KeyError: no such cohort" in said.out
    assert said.err.splitlines()[0] == "00_micro_base failed: KeyError: no such cohort"
    assert "smoke/notebooks/00_micro_base.ipynb" in said.err.splitlines()[1]


DRIVER = """
import sys
from pathlib import Path
import pytest, test_runner
from lad_utils import runner
folder = Path(sys.argv[1])
job = f"if [ -e {folder}/slow ]; then touch {folder}/begun; sleep 60; fi; echo x > {{output}}"
test_runner.toy_command(pytest.MonkeyPatch(), folder, job)
sys.exit(runner.main(["smoke", "--cores", "1", "--until", "base"]))
"""


def test_a_stopped_run_ends_its_job_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "slow").touch()
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    environment = os.environ | {"LAD_OUTPUTS": str(tmp_path), "PYTHONPATH": path}

    def begin():
        command = [sys.executable, "-c", DRIVER, str(tmp_path)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    first = begin()
    deadline = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=20)
    assert first.returncode == 130 and "stopped; the same command continues from finished work" in said, said
    assert not runner.marked_processes(tmp_path / "smoke")
    (tmp_path / "slow").unlink()
    second = begin()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0 and "[1/1] 00_micro_base" in said, said


def test_make_help_lists_every_target_that_a_reader_needs():
    said = subprocess.run(["make", "--no-print-directory"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    listed = {line.split()[1] for line in said.splitlines() if line.startswith("  make ")}
    assert listed == {"help", "env", "study", "test", "test-slow", "test-slurm", "lab", "lint", "reference", "clean"}


def test_make_clean_refuses_what_is_no_study_and_a_study_not_named():
    for settings in (["STUDY=../x"], ["STUDY=reference"], ["STUDY="], []):
        environment = {k: v for k, v in os.environ.items() if k != "STUDY"} | {"LAD_OUTPUTS": "/nonexistent"}
        done = subprocess.run(["make", "clean", *settings], cwd=REPOSITORY, capture_output=True, text=True, env=environment)
        assert done.returncode and "make clean:" in done.stderr
