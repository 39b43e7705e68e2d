"""A wrong parameter stops the run with one line that names it."""

import re
import subprocess
import sys

import nbformat
import pytest
import yaml

from lad_utils import params

SMOKE = params.load_study("smoke").model_dump()
ALL = sorted(p.stem for p in params.PARAMS.glob("*.yaml"))


def complaint(**changes) -> str:
    with pytest.raises(params.ParamsError) as caught:
        params.check(SMOKE | changes, where="test")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ALL)
def test_every_study_file_is_valid_and_named_after_its_study(name):
    assert params.load_study(name).study == name


def test_the_headline_score_is_frozen_alike_in_every_study():
    for name in ALL:
        study = params.load_study(name)
        assert (study.gamma, study.beta, study.vendi_order, study.embedder) == (1, 1.0, 1.0, "minilm")


def test_a_mistyped_key_is_named_with_the_one_meant():  # F03
    message = complaint(grpo_learning_rte=0.5)
    assert "'grpo_learning_rte'" in message and "'grpo_learning_rate'" in message and "pool_size" in message


def test_a_number_read_as_text_is_refused_with_the_way_to_write_it():  # F01
    assert yaml.safe_load("lr: 1e-6")["lr"] == "1e-6"
    assert "1.0e-6" in complaint(grpo_learning_rate="1e-6")
    assert "'grpo_learning_rate'" in complaint(grpo_learning_rate="1.0e6")


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", 0.0), ("grpo_generations", 1), ("k_score", 4), ("gamma", -1), ("seeds", []), ("pool_size", 1.5)],
)
def test_a_value_out_of_range_is_refused_by_name(key, value):  # D05: a group of one completion among them
    assert f"'{key}'" in complaint(**{key: value})


def test_a_missing_key_is_named():
    values = {k: v for k, v in SMOKE.items() if k != "beta"}
    with pytest.raises(params.ParamsError, match="'beta': Field required"):
        params.check(values, where="test")


def test_steps_that_visit_tasks_unequally_are_refused_before_training():  # D05
    assert "visited unequally" in complaint(grpo_steps=3)


def test_settings_that_would_fail_late_are_refused_at_once():
    assert "would be dropped" in complaint(cohort_size=12, grpo_prompts_per_step=8, grpo_steps=3)
    assert "at least gamma + 3" in complaint(gamma=6)
    assert "stop strings" in complaint(stop=["\n"])
    assert "'medum' is unknown; cohorts: very_hard" in complaint(cohorts=["medum", "hard", "random"])


def test_an_unknown_study_lists_those_that_exist():
    with pytest.raises(params.ParamsError, match=r"studies there: .*smoke"):
        params.load_study("smokes")


CELLS = (
    '# Default parameters: the smoke study\nstudy = "smoke"\ncohort = "medium"',
    "from lad_utils.params import resolve\np = resolve(globals())\nprint('lr', p.grpo_learning_rate, cohort)",
)


def papermill(tmp_path, *arguments, drop_tag=False):
    """Run a two-cell notebook through the real papermill; (exit code, combined output)."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    cells[0].metadata["tags"] = [] if drop_tag else ["parameters"]
    source = tmp_path / "dir sp é" / "in ü.ipynb"
    source.parent.mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(source),
        str(tmp_path / "out ü.ipynb"),
        "--log-output",
        "-k",
        "python3",
        "--language",
        "python",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=params.REPOSITORY, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_study_file_given_to_papermill_reaches_the_notebook(tmp_path):
    code, output = papermill(tmp_path, "-f", str(params.PARAMS / "micro.yaml"), "-p", "cohort", "naïve—”q")  # F08
    rate = params.load_study("micro").grpo_learning_rate
    assert code == 0 and f"lr {rate} naïve—”q" in output, output


def test_a_misspelt_name_given_to_papermill_fails(tmp_path):  # F03
    code, output = papermill(tmp_path, "-p", "learning_rate", "0.5")
    assert code != 0 and re.search(r"ParamsError: .*unknown key 'learning_rate'.*cohort", output), output


def test_text_for_a_number_given_to_papermill_fails(tmp_path):  # F01
    code, output = papermill(tmp_path, "-y", "grpo_learning_rate: 1e-6")
    assert code != 0 and "write 1.0e-6" in output, output


def test_a_missing_parameters_tag_fails_when_something_is_injected(tmp_path):  # F02
    code, output = papermill(tmp_path, "-p", "grpo_learning_rate", "0.5", drop_tag=True)
    assert code != 0 and "lacks the tag 'parameters'" in output, output


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"trainer_cohorts": ["medium", "easy"]},
            "'easy' of trainer_cohorts and sampler_cohort is none of the study's designed",
        ),
        ({"sampler_cohort": "easy"}, "'easy' of trainer_cohorts and sampler_cohort"),
        ({"samplers": [], "sampler_cohort": "", "trainers": ["adam"]}, "'trainers.0'"),
        ({"samplers": ["best"]}, "'samplers.0'"),
        ({"trainer_seeds": []}, "no cohorts or seeds"),
        ({"sampler_seeds": []}, "no cohorts or seeds"),
        ({"sampler_steps": 0}, "sampler_steps is 0"),
        ({"trainers": ["sgd", "sgd"]}, "trainers lists the same entry twice"),
    ],
)
def test_trainers_and_samplers_name_what_they_train_on(changes, told):
    assert told in complaint(**changes)


def test_a_study_without_trainers_and_samplers_needs_no_cohorts_for_them():
    none = {
        "trainers": [],
        "trainer_cohorts": [],
        "trainer_seeds": [],
        "samplers": [],
        "sampler_cohort": "",
        "sampler_seeds": [],
    }
    assert params.check(SMOKE | none | {"sampler_steps": 0}, where="test").trainers == []
