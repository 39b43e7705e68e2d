"""The DAG of notebook runs of one study: `snakemake --config study=micro --profile profiles/local --cores 2`.

On four GPUs add `gpus=4` to the configuration and `--resources gpu=4`: jobs that train or sample then take one each.

`make study` starts it through `lad_utils.runner`, which adds progress, an ETA and clean restarts. A notebook and the
study's parameters are inputs of a rule, so that editing either runs it again; the executed notebook is its log, which
stays when the notebook raises. The package's modules are no inputs, else a docstring would cost hours of training:
after a change of code that changes results, `make clean STUDY=...` starts the study over.
"""

import os
import shlex
import sys

sys.path.insert(0, str(workflow.basedir))
from lad_utils.params import PARAMS, REPOSITORY, load_study
from lad_utils.progress import NOTEBOOKS, TAKES_GPU, THREADS_ALL, oracle_jobs
from lad_utils.runs import study_dir

STUDY = load_study(config.get("study", "smoke"))
OUT = study_dir(STUDY).resolve()
ORACLE = [f"runs/{arm}/{cohort}/run.json" for arm, cohort in oracle_jobs(STUDY)]
LARGER = ["larger/model.safetensors"] if STUDY.larger_model else []
SMALLER = ["smaller/model.safetensors"] if STUDY.smaller_model else []
GPUS = int(config.get("gpus", 0))
CAUSAL = ["causal.json"] if STUDY.selections else []


# Paths below are relative to the study's folder; snakemake keeps its own records there, too, one set a study.
workdir: str(OUT)


wildcard_constraints:
    arm="|".join(dict.fromkeys(arm for arm, _ in oracle_jobs(STUDY))),
    cohort="[^/]+",


def notebook(rule):
    """A rule's notebook, as absolute path: the working directory is the study's folder."""
    return str(REPOSITORY / "notebooks" / f"{NOTEBOOKS[rule]}.ipynb")


def logs(rule, job=""):
    """The executed notebook, and beside it what papermill printed."""
    stem = f"notebooks/{NOTEBOOKS[rule]}{job}"
    return {"notebook": f"{stem}.ipynb", "text": f"{stem}.txt"}


def threads_of(rule):
    """Every core, or one. A job on a cluster's node must not count that node's cores: the runner says how many."""
    return int(config.get("cores") or workflow.cores) if rule in THREADS_ALL else 1


def gpus_of(rule):
    return 1 if GPUS and rule in TAKES_GPU else 0


# A relative LAD_OUTPUTS would mean something else in notebooks/ than it does here.
os.environ["LAD_OUTPUTS"] = str(OUT.parent)

# HF_HUB_OFFLINE: nothing is fetched in a run. One OpenMP thread a core that the job holds: results don't hang on the
# machine's size, and jobs side by side don't fight. `-k python3` is the kernel of this very interpreter: see
# JUPYTER_PREFER_ENV_PATH, without which one in the user's home may win.
ENVIRONMENT = (
    "OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads} TQDM_DISABLE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false "
    "PYTHONHASHSEED=0 JUPYTER_PREFER_ENV_PATH=1 "
)
PYTHON = shlex.quote(sys.executable).replace("{", "{{").replace("}", "}}")
RUN = (
    PYTHON
    + " -m papermill {input.notebook:q} {log.notebook:q} -f {input.params:q} --cwd "
    + shlex.quote(str(REPOSITORY / "notebooks")).replace("{", "{{").replace("}", "}}")
    + " -k python3 --log-output --no-progress-bar --start-timeout 300"
)
PAPERMILL = ENVIRONMENT + RUN
ON_DEVICE = ENVIRONMENT + f"{PYTHON} -m lad_utils.devices {GPUS} -- " + RUN if GPUS else PAPERMILL
TO_LOG = " > {log.text:q} 2>&1"
STUDY_FILE = str(PARAMS / f"{STUDY.study}.yaml")


localrules:
    all,


rule base:
    input:
        notebook=notebook("base"),
        params=STUDY_FILE,
    output:
        "base/model.safetensors",
        "base.json",
        LARGER,
        SMALLER,
    log:
        **logs("base"),
    threads: threads_of("base")
    resources:
        gpu=gpus_of("base"),
    shell:
        ON_DEVICE + TO_LOG


rule cohorts:
    input:
        "base/model.safetensors",
        notebook=notebook("cohorts"),
        params=STUDY_FILE,
    output:
        "tasks.parquet",
        "cohorts.parquet",
        "rollouts/screen.parquet",
    log:
        **logs("cohorts"),
    threads: threads_of("cohorts")
    resources:
        gpu=gpus_of("cohorts"),
    shell:
        ON_DEVICE + " -p cores {threads}" + TO_LOG


rule rollouts:
    input:
        rules.cohorts.output,
        notebook=notebook("rollouts"),
        params=STUDY_FILE,
    output:
        "rollouts/score.parquet",
        "rollouts/eval.parquet",
        "rollouts/eval_greedy.parquet",
        "rollout_totals.parquet",
        "target_counts.parquet",
        "judgements.parquet",
    log:
        **logs("rollouts"),
    threads: threads_of("rollouts")
    resources:
        gpu=gpus_of("rollouts"),
    shell:
        ON_DEVICE + " -p cores {threads}" + TO_LOG


rule scoring:
    input:
        rules.rollouts.output,
        notebook=notebook("scoring"),
        params=STUDY_FILE,
    output:
        "rollout_scores.parquet",
        "diversity.parquet",
    log:
        **logs("scoring"),
    threads: threads_of("scoring")
    shell:
        PAPERMILL + TO_LOG


rule baselines:
    input:
        rules.rollouts.output,
        notebook=notebook("baselines"),
        params=STUDY_FILE,
    output:
        "task_signals.parquet",
        "baseline_costs.parquet",
        "model_scores.parquet",
        "holdout/model.safetensors",
    log:
        **logs("baselines"),
    threads: threads_of("baselines")
    resources:
        gpu=gpus_of("baselines"),
    shell:
        ON_DEVICE + " -p cores {threads}" + TO_LOG


rule zeros:
    input:
        rules.rollouts.output,
        notebook=notebook("zeros"),
        params=STUDY_FILE,
    output:
        "zeros.parquet",
    log:
        **logs("zeros"),
    threads: threads_of("zeros")
    resources:
        gpu=gpus_of("zeros"),
    shell:
        ON_DEVICE + " -p cores {threads}" + TO_LOG


rule problems:
    input:
        LARGER,
        rules.rollouts.output,
        notebook=notebook("problems"),
        params=STUDY_FILE,
    output:
        "problem_counts.parquet",
        "problem_features.parquet",
        "cool_counts.parquet",
    log:
        **logs("problems"),
    threads: threads_of("problems")
    resources:
        gpu=gpus_of("problems"),
    shell:
        ON_DEVICE + " -p cores {threads}" + TO_LOG


rule fewer:
    input:
        rules.scoring.output,
        notebook=notebook("fewer"),
        params=STUDY_FILE,
    output:
        "fewer_rollouts.parquet",
    log:
        **logs("fewer"),
    threads: threads_of("fewer")
    shell:
        PAPERMILL + TO_LOG


rule oracle:
    input:
        rules.rollouts.output,
        notebook=notebook("oracle"),
        params=STUDY_FILE,
    output:
        "runs/{arm}/{cohort}/run.json",
    log:
        **logs("oracle", "/{arm}-{cohort}"),
    threads: threads_of("oracle")
    resources:
        gpu=gpus_of("oracle"),
    shell:
        ON_DEVICE + " -r arm {wildcards.arm:q} -r cohort {wildcards.cohort:q}" + TO_LOG


rule loco:
    input:
        rules.scoring.output,
        rules.baselines.output,
        ORACLE,
        notebook=notebook("loco"),
        params=STUDY_FILE,
    output:
        "loco.json",
        "scores.parquet",
        "costs.parquet",
        "lifts.parquet",
        "groups.parquet",
        "steps.parquet",
        "eval_questions.parquet",
        "fresh_questions.parquet",
        "curves.parquet",
    log:
        **logs("loco"),
    threads: threads_of("loco")
    shell:
        PAPERMILL + TO_LOG


rule frontier:
    input:
        rules.loco.output,
        notebook=notebook("frontier"),
        params=STUDY_FILE,
    output:
        "frontier.json",
    log:
        **logs("frontier"),
    threads: threads_of("frontier")
    shell:
        PAPERMILL + TO_LOG


rule ablations:
    input:
        rules.loco.output,
        notebook=notebook("ablations"),
        params=STUDY_FILE,
    output:
        "ablations.parquet",
    log:
        **logs("ablations"),
    threads: threads_of("ablations")
    shell:
        PAPERMILL + TO_LOG


rule ceiling:
    input:
        rules.loco.output,
        rules.problems.output,
        notebook=notebook("ceiling"),
        params=STUDY_FILE,
    output:
        "problem_transfer.parquet",
        "problems.json",
    log:
        **logs("ceiling"),
    threads: threads_of("ceiling")
    shell:
        PAPERMILL + TO_LOG


rule mechanism:
    input:
        rules.loco.output,
        notebook=notebook("mechanism"),
        params=STUDY_FILE,
    output:
        "mechanism.json",
    log:
        **logs("mechanism"),
    threads: threads_of("mechanism")
    shell:
        PAPERMILL + TO_LOG


rule causal:
    input:
        rules.loco.output,
        rules.problems.output,
        notebook=notebook("causal"),
        params=STUDY_FILE,
    output:
        "causal.json",
    log:
        **logs("causal"),
    threads: threads_of("causal")
    shell:
        PAPERMILL + TO_LOG


rule faults:
    input:
        rules.loco.output,
        notebook=notebook("faults"),
        params=STUDY_FILE,
    output:
        "faults.parquet",
        "label_faults.parquet",
        "signed.parquet",
    log:
        **logs("faults"),
    threads: threads_of("faults")
    shell:
        PAPERMILL + TO_LOG


rule tasks:
    input:
        rules.faults.output,
        notebook=notebook("tasks"),
        params=STUDY_FILE,
    output:
        "task_report.parquet",
    log:
        **logs("tasks"),
    threads: threads_of("tasks")
    shell:
        PAPERMILL + TO_LOG


rule size:
    input:
        rules.loco.output,
        notebook=notebook("size"),
        params=STUDY_FILE,
    output:
        "size.json",
    log:
        **logs("size"),
    threads: threads_of("size")
    shell:
        PAPERMILL + TO_LOG


rule transfer:
    input:
        rules.loco.output,
        notebook=notebook("transfer"),
        params=STUDY_FILE,
    output:
        "transfer.parquet",
        "transfer.json",
    log:
        **logs("transfer"),
    threads: threads_of("transfer")
    shell:
        PAPERMILL + TO_LOG


rule record:
    input:
        rules.base.output,
        notebook=notebook("record"),
        params=STUDY_FILE,
    output:
        "published.json",
    log:
        **logs("record"),
    threads: threads_of("record")
    shell:
        PAPERMILL + TO_LOG


rule failures:
    input:
        rules.loco.output,
        rules.problems.output,
        notebook=notebook("failures"),
        params=STUDY_FILE,
    output:
        "failure_modes.json",
    log:
        **logs("failures"),
    threads: threads_of("failures")
    shell:
        PAPERMILL + TO_LOG


rule prediction:
    input:
        rules.loco.output,
        notebook=notebook("prediction"),
        params=STUDY_FILE,
    output:
        "prediction.json",
        "predictions.parquet",
    log:
        **logs("prediction"),
    threads: threads_of("prediction")
    shell:
        PAPERMILL + TO_LOG


rule trainers:
    input:
        rules.ablations.output,
        notebook=notebook("trainers"),
        params=STUDY_FILE,
    output:
        "task_gains.parquet",
        "trainers.json",
    log:
        **logs("trainers"),
    threads: threads_of("trainers")
    shell:
        PAPERMILL + TO_LOG


rule online:
    input:
        rules.loco.output,
        notebook=notebook("online"),
        params=STUDY_FILE,
    output:
        "online.json",
    log:
        **logs("online"),
    threads: threads_of("online")
    shell:
        PAPERMILL + TO_LOG


rule price:
    input:
        rules.loco.output,
        notebook=notebook("price"),
        params=STUDY_FILE,
    output:
        "price.json",
        "offers.parquet",
    log:
        **logs("price"),
    threads: threads_of("price")
    shell:
        PAPERMILL + TO_LOG


rule report:
    input:
        rules.loco.output,
        rules.mechanism.output,
        CAUSAL,
        rules.zeros.output,
        rules.faults.output,
        rules.fewer.output,
        rules.size.output,
        rules.transfer.output,
        rules.tasks.output,
        rules.ablations.output,
        rules.problems.output,
        rules.ceiling.output,
        rules.record.output,
        rules.failures.output,
        rules.prediction.output,
        rules.trainers.output,
        rules.online.output,
        rules.price.output,
        rules.frontier.output,
        notebook=notebook("report"),
        params=STUDY_FILE,
    output:
        "results.json",
        "report.html",
    log:
        **logs("report"),
    threads: threads_of("report")
    shell:
        PAPERMILL + TO_LOG


# Every result, not the last ones alone: of a chain that is complete at its end snakemake would not miss a lost middle.
rule all:
    default_target: True
    input:
        rules.base.output,
        rules.cohorts.output,
        rules.rollouts.output,
        rules.scoring.output,
        rules.baselines.output,
        ORACLE,
        rules.loco.output,
        rules.mechanism.output,
        CAUSAL,
        rules.zeros.output,
        rules.faults.output,
        rules.fewer.output,
        rules.size.output,
        rules.transfer.output,
        rules.tasks.output,
        rules.ablations.output,
        rules.problems.output,
        rules.ceiling.output,
        rules.record.output,
        rules.failures.output,
        rules.prediction.output,
        rules.trainers.output,
        rules.online.output,
        rules.price.output,
        rules.frontier.output,
        rules.report.output,
