"""The smoke study end to end, killed and resumed: what `make study` promises."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from lad_utils.params import REPOSITORY, load_study
from lad_utils.progress import oracle_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
RESULTS = ("tasks", "cohorts", "judgements", "scores", "lifts", "groups", "eval_questions", "zeros", "faults", "signed")
RESULTS += ("fewer_rollouts", "transfer", "task_report", "diversity", "curves", "task_gains", "task_signals")
TIMINGS = ["seconds", "train_seconds", "peak_bytes"]


def start(outputs):
    command = [sys.executable, "-m", "lad_utils.runner", "smoke", "--cores", "2"]
    environment = os.environ | {"LAD_OUTPUTS": str(outputs), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def made_by_make_test():
    """(folder, what it said) of the smoke study that `make test` ran, if it is whole and newer than all code; else None."""
    place = REPOSITORY / "outputs" / ".test"
    done, log = place / "study" / "smoke" / "results.json", place / "log"
    code = [p for pattern in ("lad_utils/*.py", "notebooks/*.ipynb") for p in REPOSITORY.glob(pattern)]
    code += [REPOSITORY / "Snakefile", REPOSITORY / "params" / "smoke.yaml"]
    if not (done.is_file() and log.is_file()) or done.stat().st_mtime < max(p.stat().st_mtime for p in code):
        return None
    return done.parent, log.read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    if found := made_by_make_test():
        return found
    outputs = tmp_path_factory.mktemp("undisturbed")
    process = start(outputs)
    text, _ = process.communicate(timeout=900)
    assert process.returncode == 0, text
    return outputs / "smoke", text


def test_the_smoke_study_ends_with_its_table_report_and_figures(undisturbed):
    folder, text = undisturbed
    found = json.loads((folder / "results.json").read_text())
    assert found["table"] in text and "report.html" in text and "figures" in text
    assert found["n_cohorts"] == 4 and found["invalid_runs"] == []
    assert (folder / "report.html").stat().st_size > 10_000
    assert {p.suffix for p in (folder / "figures").iterdir()} == {".png", ".svg"}


def test_it_prints_a_line_a_job_with_what_is_left(undisturbed):
    _, text = undisturbed
    lines = [line for line in text.splitlines() if line.startswith("[")]
    study = load_study("smoke")
    assert len([line for line in lines if "05_grpo_oracle" in line]) == len(oracle_jobs(study))
    assert sum("left" in line for line in lines) >= len(lines) - 1


def test_resolved_parameters_and_trls_config_are_stored_with_each_run(undisturbed):
    folder, _ = undisturbed
    for path in folder.glob("runs/*/*/seed*"):
        text = (path / "params.yaml").read_text()
        assert "grpo_config:" in text and "scale_rewards: group" in text
        assert "commit" in json.loads((path / "environment.json").read_text())


def test_killed_at_any_instant_the_same_command_gives_the_same_results(undisturbed, tmp_path):
    reference, _ = undisturbed
    for delay in (12, 25, 40):
        process = start(tmp_path)
        time.sleep(delay)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)  # the runner alone: its jobs live on as orphans
        process.communicate()
    process = start(tmp_path)
    text, _ = process.communicate(timeout=900)
    assert process.returncode == 0, text
    for name in RESULTS:
        again, first = (pd.read_parquet(f / f"{name}.parquet") for f in (tmp_path / "smoke", reference))
        same = [c for c in first.columns if c not in TIMINGS]
        pd.testing.assert_frame_equal(again[same], first[same])
