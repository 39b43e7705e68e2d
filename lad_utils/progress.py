"""The jobs of a study: which there are, what snakemake's output says of them, how long is left and why one failed."""

import json
import re
from collections import Counter
from pathlib import Path

from lad_utils.mixtures import mixture_names
from lad_utils.params import Study
from lad_utils.size import size_cohort_names

# rule -> its notebook, in the order in which data flows
NOTEBOOKS = {
    "base": "00_micro_base",
    "cohorts": "01_cohorts",
    "rollouts": "02_rollouts",
    "scoring": "03_scoring",
    "baselines": "04_baselines",
    "zeros": "15_zeros",
    "problems": "19_problem_rollouts",
    "oracle": "05_grpo_oracle",
    "loco": "06_loco",
    "ablations": "07_ablations",
    "mechanism": "08_mechanism",
    "causal": "09_causal_selection",
    "ceiling": "10_noise_ceiling",
    "fewer": "13_fewer_rollouts",
    "faults": "14_faults",
    "size": "16_size",
    "transfer": "17_transfer",
    "tasks": "18_task_report",
    "record": "20_published_record",
    "failures": "21_failure_modes",
    "prediction": "22_prediction",
    "trainers": "23_trainers",
    "online": "24_online",
    "price": "25_price",
    "frontier": "26_cost_frontier",
    "report": "11_report",
}
THREADS_ALL = ("cohorts", "rollouts", "zeros", "problems", "baselines")  # these take every core; all others take one
TAKES_GPU = (*THREADS_ALL, "base", "oracle")  # these train or sample: where there are GPUs, each takes one
NEEDS = {
    "base": [],
    "cohorts": ["base"],
    "rollouts": ["cohorts"],
    "scoring": ["rollouts"],
    "baselines": ["rollouts"],
    "zeros": ["rollouts"],
    "problems": ["rollouts"],
    "oracle": ["rollouts"],
    "loco": ["scoring", "baselines", "oracle"],
    "frontier": ["loco"],
    "ablations": ["loco"],
    "ceiling": ["loco", "problems"],
    "record": ["base"],
    "failures": ["loco", "problems"],
    "prediction": ["loco"],
    "mechanism": ["loco"],
    "trainers": ["ablations"],
    "online": ["loco"],
    "price": ["loco"],
    "causal": ["loco", "problems"],
    "fewer": ["scoring"],
    "faults": ["loco"],
    "tasks": ["faults"],
    "size": ["loco"],
    "transfer": ["loco"],
    "report": [
        "loco",
        "mechanism",
        "causal",
        "zeros",
        "faults",
        "fewer",
        "size",
        "transfer",
        "tasks",
        "ablations",
        "ceiling",
        "record",
        "failures",
        "prediction",
        "trainers",
        "online",
        "price",
        "frontier",
    ],
}


def oracle_jobs(study: Study) -> list[tuple[str, str]]:
    """(arm, cohort) of every training job of a study; a job trains all seeds of its cohort."""
    arms = {
        "main": study.cohorts,
        "causal": study.causal_cohorts,
        "selection": study.selection_cohorts,
        "size": size_cohort_names(study),
    }
    arms["mixture"] = mixture_names(study.mixtures) if study.mixture_seeds else []
    arms["short"] = [*study.cohorts, *arms["mixture"]] if study.short_steps else []
    arms["small"] = [*study.cohorts, *arms["mixture"]] if study.smaller_model else []
    arms |= {trainer: study.trainer_cohorts for trainer in study.trainers}
    arms["online"] = study.samplers
    return [(arm, cohort) for arm, cohorts in arms.items() for cohort in cohorts]


def count_jobs(study: Study, *, until: str = "report") -> Counter:
    """rule -> number of jobs that a run up to `until` consists of, finished or not."""
    wanted, queued = set(), [until]
    while queued:
        rule = queued.pop()
        wanted.add(rule)
        queued += NEEDS[rule]
    if not study.selections:
        wanted.discard("causal")
    return Counter({rule: len(oracle_jobs(study)) if rule == "oracle" else 1 for rule in NOTEBOOKS if rule in wanted})


def prior_seconds(study: Study) -> dict[str, float]:
    """rule -> seconds a job takes on one 2026 laptop core, until a finished one tells better. Training scales with its work."""
    samples = study.grpo_steps * study.grpo_prompts_per_step * study.grpo_generations * len(study.seeds)
    return {
        "base": 360.0 if study.retrain_base else 8.0,
        "cohorts": 45.0,
        "rollouts": 60.0,
        "scoring": 20.0 + 1.2 * study.mixtures,
        "baselines": 30.0 + 0.03 * study.cohort_size * (len(study.cohorts) + study.mixtures),
        "zeros": 30.0,
        "problems": 5.0 + (study.n_eval + study.n_fresh) * (3 * study.k_draws + 32) / 1500,
        "ablations": 40.0,
        "ceiling": 30.0,
        "record": 20.0,
        "failures": 12.0,
        "prediction": 12.0,
        "faults": 20.0,
        "fewer": 30.0,
        "size": 12.0,
        "transfer": 15.0,
        "tasks": 15.0,
        "oracle": 12 + 80 * samples / 8192,  # 64 steps x 8 prompts x 8 completions x 2 seeds take about 90 s
        "loco": 25.0,
        "mechanism": 12.0,
        "trainers": 15.0,
        "online": 10.0,
        "price": 10.0,
        "frontier": 10.0,
        "causal": 12.0,
        "report": 15.0,
    }


def remaining_seconds(
    pending: Counter, running: list[tuple[str, float]], seconds: dict[str, float], *, cores: int, gpus: int = 0
) -> float:
    """Time left: unfinished jobs a rule (those that run included) x their seconds, less what the running ones have done.

    One-thread jobs of a rule share the cores, and the GPUs if there are any and the rule takes one; rules are added up, as
    each waits for the one before. `running` holds (rule, elapsed seconds).
    """
    left = 0.0
    for rule, n in pending.items():
        done = sum(min(elapsed, seconds[rule]) for name, elapsed in running if name == rule)
        at_once = 1 if rule in THREADS_ALL else min(cores, gpus) if gpus and rule in TAKES_GPU else cores
        left += (n * seconds[rule] - done) / max(min(at_once, n), 1)
    return left


def clock(seconds: float) -> str:
    """372 -> '6:12', 3723 -> '1:02:03'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """What snakemake's output says so far: `feed` it line by line; it returns (event, job) when something happened.

    Events: planned, finished, retried, stopping. A job is {"rule", "label", "started"}; `planned` counts the unfinished
    jobs a rule, and who reads a `finished` takes it off.
    """

    def __init__(self):
        self.planned, self.running, self.failed, self.missing = Counter(), {}, {}, []
        self._block, self._rule, self._started, self._jobid = None, None, 0.0, ""

    def feed(self, line: str, *, now: float):
        if match := re.match(r"(?:local)?rule (\w+):$", line):
            # the target rule `all` is no work
            self._block, self._rule, self._started = "job" if match[1] in NOTEBOOKS else "target", match[1], now
        elif match := re.match(r"Error in rule (\w+):$", line):
            self._block = "error"
        elif line == "Job stats:":
            self._block = "stats"
        elif self._block == "stats" and (match := re.match(r"(\w+)\s+(\d+)$", line)):
            if match[1] == "total":
                self._block = None
                return "planned", None
            if match[1] in NOTEBOOKS:
                self.planned[match[1]] = int(match[2])
        elif match := re.match(r"    jobid: (\d+)$", line):
            if self._block == "job":
                self.running[match[1]] = {"rule": self._rule, "label": "", "started": self._started}
                self._jobid = match[1]
            elif self._block == "error" and match[1] in self.running:
                self.failed[match[1]] = self.running.pop(match[1])
        elif self._block == "job" and (match := re.match(r"    wildcards: (.+)$", line)):
            self.running[self._jobid]["label"] = "/".join(part.partition("=")[2] for part in match[1].split(", "))
        elif match := re.match(r"Finished jobid: (\d+)\b", line):
            if match[1] in self.running:
                return "finished", self.running.pop(match[1])
        elif match := re.match(r"Trying to restart job (\d+)\.", line):
            return "retried", self.failed.pop(match[1], None)
        elif match := re.match(r"Job (\d+)\s+completed successfully, but some output files are missing", line):
            if match[1] in self.running:
                self.failed[match[1]] = self.running.pop(match[1]) | {"unwritten": True}
        elif line.endswith("(missing locally)") or "(missing locally, " in line:
            self.missing.append(line.partition(" (missing")[0])
        elif line.startswith("Shutting down, this might take some time"):
            return "stopping", None
        return None

    def unwritten(self, job: dict) -> list[str]:
        """The outputs that a failed job ended without writing; empty when it failed otherwise."""
        return list(dict.fromkeys(self.missing)) if job.get("unwritten") else []


def name_of(job: dict) -> str:
    """As a reader sees it: '05_grpo_oracle main/random'."""
    return f"{NOTEBOOKS[job['rule']]} {job['label']}".rstrip()


def notebook_log(job: dict) -> str:
    """Path of a job's executed notebook, relative to the study's folder and without its ending."""
    return f"notebooks/{NOTEBOOKS[job['rule']]}" + (f"/{job['label'].replace('/', '-')}" if job["label"] else "")


def failure_line(stem: Path, *, unwritten: list[str] | None = None) -> str:
    """The exception that ended a notebook, as one line: from the executed notebook, else the last line papermill printed.

    A notebook that ran through but left some of its outputs `unwritten` has no exception: then those are named.
    """
    if unwritten:
        return f"it ended without writing {', '.join(unwritten)}"
    try:
        cells = json.loads(stem.with_name(stem.name + ".ipynb").read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        cells = []
    errors = [out for cell in cells for out in cell.get("outputs", []) if out.get("output_type") == "error"]
    if errors:
        text = f"{errors[-1]['ename']}: {errors[-1]['evalue']}"
    else:
        try:
            lines = stem.with_name(stem.name + ".txt").read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        said = [line for line in lines if line.strip() and not line.startswith(("Executing Cell", "Ending Cell"))]
        exceptions = [line for line in said if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
        text = (exceptions or said or ["it was ended before it said why"])[-1]
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return text if len(text) <= 400 else text[:397] + "..."


def measured_before(folder: Path) -> dict[str, list[float]]:
    """rule -> seconds of the jobs that an earlier run finished, as papermill noted them in the executed notebooks."""
    found = {}
    for rule, name in NOTEBOOKS.items():
        for path in [folder / f"notebooks/{name}.ipynb", *(folder / f"notebooks/{name}").glob("*.ipynb")]:
            try:
                note = json.loads(path.read_text(encoding="utf-8"))["metadata"]["papermill"]
            except (OSError, ValueError, KeyError):
                continue
            if note.get("duration") and not note.get("exception"):
                found.setdefault(rule, []).append(float(note["duration"]))
    return found
