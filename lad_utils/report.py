"""From a study's tables to what people read: scores, results.json, the results table, one page, the published files."""

import argparse
import base64
import html
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from lad_utils.ablations import ablation_entries
from lad_utils.baselines import METRICS, score_cohort
from lad_utils.ceilings import noise_ceiling_entries
from lad_utils.cohorts import score_split
from lad_utils.contrasts import contrast_entries, slope_entries
from lad_utils.correlations import RANKED, agreement_entries, comparison_entries, correlation_entries, with_operation_mix
from lad_utils.elicitation import cooling_entries, elicitation_entries
from lad_utils.embeddings import embed
from lad_utils.faults import fault_entries
from lad_utils.findings import findings, readme_with, reliability, results_table
from lad_utils.params import REPOSITORY, Study, load_study
from lad_utils.prediction import coverage_entries, prediction_table
from lad_utils.problems import Problems, between_entries, history_entries, problem_entries, study_problems, subsets
from lad_utils.published import published_entries
from lad_utils.reliability import PUBLISHED_LIFTS, fewer_entries, signed_entries, size_entries, transfer_entries, zero_entries
from lad_utils.runs import REFERENCE, environment, read_table, study_dir, write_json, write_params, write_table, write_text
from lad_utils.validation import (
    DUPLICATES,
    NOISY,
    causal_entries,
    entry,
    lift_entries,
    mechanism_entries,
    run_mechanics,
    score_entries,
    valid,
    validated,
)

TABLES = (
    "tasks",
    "cohorts",
    "rollout_totals",
    "target_counts",
    "scores",
    "diversity",
    "zeros",
    "faults",
    "label_faults",
    "signed",
    "fewer_rollouts",
    "transfer",
    "task_report",
    "lifts",
    "groups",
    "steps",
    "eval_questions",
    "fresh_questions",
    "ablations",
    "problem_counts",
    "problem_features",
    "problem_transfer",
    "cool_counts",
    "costs",
)
HISTORY_FILE = "acc_step_500.json"
UNPUBLISHED_FIGURES = ("cohorts", "pass_rates", "lad_by_cohort")  # large, and in the executed notebooks


def score_study(study: Study, tasks: pd.DataFrame, judgements: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """The `scores` table: arm, cohort, metric, value, ci_low, ci_high, n_tasks, generated_tokens, forward_tokens, seconds.

    `judgements` has a row a rollout (arm, cohort, position, task_id, parsed, reward); `totals` is rollouts.totals. The cost is
    that of the base model's rollouts a metric needs, shared by all metrics that use them.
    """
    prompts = tasks.set_index("task_id")["prompt"]
    used = judgements["task_id"].unique().tolist()
    vectors = pd.DataFrame(embed(prompts[used].tolist(), embedder=study.embedder), index=used)
    costs = {split: t.set_index("task_id") for split, t in totals.groupby("split")}
    tables = []
    for (arm, name), group in judgements.groupby(["arm", "cohort"], sort=False):
        cost = costs[score_split(arm)]
        ids = group.groupby("position", sort=True)["task_id"].first()
        table = score_cohort(study, group, vectors.loc[ids].to_numpy(), (cost["prompt_tokens"] / cost["n"])[ids].to_numpy())
        spent = cost.loc[ids.unique()]
        table["n_tasks"] = len(ids)
        used = table["metric"].map(lambda m: "rollouts" in METRICS[m][1]).astype(int)
        table["generated_tokens"] = used * int(spent["generated_tokens"].sum())
        table["forward_tokens"] = used * int((spent["generated_tokens"] + spent["prompt_tokens"]).sum())
        table["seconds"] = used * spent["seconds"].sum()
        tables.append(table.assign(arm=arm, cohort=name))
    scores = pd.concat(tables, ignore_index=True)
    return scores[["arm", "cohort", *[c for c in scores.columns if c not in ("arm", "cohort")]]]


def all_entries(study: Study, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every headline number of a study from its raw tables (see TABLES)."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    entries = lift_entries(lifts, questions, tables["tasks"]) + score_entries(scores)
    table = validated(scores, lifts, questions)
    entries += validation_entries(tables, table) + failure_entries(tables)
    entries += prediction_entries(table, validated(scores, lifts, questions, arm="mixture"))
    entries += ablation_entries(tables["ablations"], lifts, questions)
    entries += study_problem_entries(study, tables) + published_entries(pd.read_csv(PUBLISHED_LIFTS))
    mechanics = table.merge(run_mechanics(tables["groups"], tables["steps"], lifts), on="cohort")
    entries += mechanism_entries(mechanics)
    if study.causal_cohorts:
        entries += causal_entries(lifts, questions, scores)
    entries += cost_entries(tables["costs"])
    return entries + reliability_entries(study, tables)


def validation_entries(tables: dict[str, pd.DataFrame], table: pd.DataFrame) -> list[dict]:
    """Every metric against lift with its ceilings: designed cohorts (`table`), parts of them, greedy lifts, and mixtures."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    sets = {
        "": table,
        "without_duplicates.": table[~table["cohort"].isin(DUPLICATES)],
        "without_noisy.": table[~table["cohort"].isin(NOISY)],
        "greedy.": validated(scores, lifts, questions, variant="greedy"),
        "mixture.": validated(scores, lifts, questions, arm="mixture"),
    }
    entries = [e for prefix, rows in sets.items() for e in correlation_entries(rows, prefix=prefix)]
    for prefix, arm in (("", "main"), ("mixture.", "mixture")):
        mixed = with_operation_mix(sets[prefix], tables["cohorts"], tables["tasks"], arm=arm)
        entries += agreement_entries(mixed, prefix=prefix) + comparison_entries(mixed, prefix=prefix)
    found = {e["name"]: e["value"] for e in entries}
    for prefix, arm, variant in (("", "main", "sampled"), ("greedy.", "main", "greedy"), ("mixture.", "mixture", "sampled")):
        rhos = {m: found[f"{prefix}{m}.rho"] for m in RANKED if found[f"{prefix}{m}.rho"] is not None}
        entries += noise_ceiling_entries(lifts, questions, rhos, arm=arm, variant=variant, rng=np.random.default_rng(0))
    return entries


def failure_entries(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Contrasts whose signs were written down beforehand, the same over the mixtures, and what needs no training at all."""
    lifts, questions = tables["lifts"], tables["eval_questions"]
    entries = contrast_entries(lifts, questions) + slope_entries(lifts, questions, tables["cohorts"], tables["tasks"])
    return entries + elicitation_entries(lifts, questions) + cooling_entries(tables["problem_counts"], tables["cool_counts"])


def study_problem_entries(study: Study, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The problem level: all, rare and fresh problems, between base models, and a real run's history where it is at hand."""
    evaluation = _problems(tables, split="eval")
    entries = problem_entries(subsets(evaluation, _problems(tables, split="fresh")))
    if study.other_study:
        names = ("problem_counts", "problem_features", "problem_transfer", "eval_questions", "lifts")
        other = {name: read_table(REFERENCE.parent / study.other_study / f"{name}.parquet") for name in names}
        source = f"problem_counts.parquet, eval_questions.parquet; and those of {study.other_study}"
        entries += between_entries(evaluation, _problems(other, split="eval"), source=source)
    history = REPOSITORY / study.history / HISTORY_FILE
    return entries + (history_entries(history) if history.is_file() else [])


def _problems(tables: dict[str, pd.DataFrame], *, split: str) -> Problems | None:
    """What `problems` needs of a study's tables, invalid runs left out."""
    runs = valid(tables["lifts"][tables["lifts"]["variant"] == "sampled"])["run_id"]
    asked = tables["eval_questions" if split == "eval" else "fresh_questions"]
    base = (tables["problem_counts"], tables["problem_features"], tables["problem_transfer"])
    return study_problems(*base, asked, split=split, runs=runs)


def prediction_entries(designed: pd.DataFrame, mixtures: pd.DataFrame) -> list[dict]:
    """Coverage of predicted lifts' intervals."""
    return coverage_entries(prediction_table(designed), prediction_table(mixtures))


def reliability_entries(study: Study, tables: dict[str, pd.DataFrame]) -> list[dict]:
    """How far the scores can be relied on: fewer rollouts, faults, zeros, size, transfer."""
    scores, lifts, questions = tables["scores"], tables["lifts"], tables["eval_questions"]
    families = dict(zip(tables["cohorts"]["cohort"], tables["cohorts"]["family"], strict=True))
    entries = fewer_entries(tables["fewer_rollouts"]) + fault_entries(tables["faults"])
    entries += signed_entries(tables["signed"], scores, lifts, questions) + zero_entries(tables["zeros"])
    entries += size_entries(scores, lifts, families, prompts_per_step=study.grpo_prompts_per_step)
    return entries + transfer_entries(tables["transfer"], scores, lifts, questions)


def cost_entries(costs: pd.DataFrame) -> list[dict]:
    """What scoring a cohort and training on it cost, and their ratio in FLOPs."""
    row = costs.set_index(["kind", "name"])
    score, training = row.loc[("stage", "score_a_cohort")], row.loc[("stage", "train_and_evaluate_a_cohort")]
    ratio = training["flops"] / score["flops"]
    args = {"n": 1, "source": "costs.parquet", "note": "one cohort on average; training: one seed"}
    return [
        entry("cost.score_a_cohort_flops", score["flops"], **args),
        entry("cost.train_and_evaluate_a_cohort_flops", training["flops"], **args),
        entry("cost.training_over_scoring", ratio, **args),
    ]


def results(study: Study, tables: dict[str, pd.DataFrame]) -> dict:
    """The content of results.json; its commit is that of the code that trained the designed cohorts' runs."""
    commit = ", ".join(sorted(set(tables["lifts"].loc[tables["lifts"]["arm"] == "main", "commit"])))
    entries = all_entries(study, tables)
    found = {e["name"]: e for e in entries}
    return {
        "study": study.study,
        "commit": commit,
        "n_cohorts": len(validated(tables["scores"], tables["lifts"], tables["eval_questions"])),
        "n_seeds": len(study.seeds),
        "invalid_runs": sorted({f"{r.run_id}: {r.invalid}" for r in tables["lifts"].itertuples() if r.invalid}),
        "table": results_table(found, commit=commit),
        "findings": findings(found),
        "reliability": reliability(found),
        "entries": entries,
    }


def load_tables(folder: Path) -> dict[str, pd.DataFrame]:
    return {name: read_table(Path(folder) / f"{name}.parquet") for name in TABLES}


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>LAD: {study}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; }}
img {{ max-width: 100%; height: auto; background: #fff; }} figure {{ margin: 2rem 0; }} figcaption {{ color: #555; }}
table {{ border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; }}
th, td {{ padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: left; }}
</style></head><body>
<h1>Which task sets are worth GRPO compute?</h1>
<p>Study <b>{study}</b>, commit {commit}: {n_cohorts} cohorts, {n_seeds} seeds each.
Every number comes from <code>results.json</code>, which names the raw file behind it. {invalid}</p>
{table}
<ul>{findings}</ul>
<h2>How far a score can be relied on</h2>
<ul>{reliability}</ul>
{figures}
<h2>All numbers</h2>
{entries}
</body></html>
"""

CAPTIONS = {
    "lift_against_lad": "LAD before training against the lift that GRPO then gave, one point a cohort.",
    "metric_ranking": "Spearman correlation of every metric with measured lift; the dashed line is the noise ceiling.",
    "lifts": "Measured lift of every cohort, with its interval over the held-out questions.",
    "mechanism": "LAD and base p(1-p) against the raw reward variance that GRPO logged.",
    "causal": "Lift of task selections of equal size, trained identically.",
    "fewer_rollouts": "How well fewer rollouts rank the cohorts: adaptive, uniform, and fewer tasks.",
    "faults": "Wrong labels told from rollouts alone.",
    "zeros": "Tasks never solved, by kind, and how many further rollouts solved.",
    "size_micro": "Lift against the number of distinct tasks, at several numbers of steps.",
}


def page(found: dict, folder: Path) -> str:
    """One self-contained HTML file: the results table, the figures inlined, all entries."""
    rows = [[c.strip() for c in line.strip("| ").split(" | ")] for line in found["table"].splitlines()]
    table = pd.DataFrame([r for r in rows[2:]], columns=rows[0]).map(lambda c: c.replace("*", "").replace("`", ""))
    figures = []
    for name, caption in CAPTIONS.items():
        path = Path(folder) / "figures" / f"{name}.png"
        if path.is_file():
            data = base64.b64encode(path.read_bytes()).decode()
            figures.append(
                f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
            )
    invalid = (
        f"Invalid runs: {html.escape('; '.join(found['invalid_runs']))}." if found["invalid_runs"] else "No run was invalid."
    )
    return PAGE.format(
        study=html.escape(found["study"]),
        commit=html.escape(found["commit"]),
        n_cohorts=found["n_cohorts"],
        n_seeds=found["n_seeds"],
        invalid=invalid,
        table=table.to_html(index=False),
        **{
            part: "".join(f"<li>{html.escape(line[2:])}</li>" for line in found[part].splitlines())
            for part in ("findings", "reliability")
        },
        figures="\n".join(figures),
        entries=pd.DataFrame(found["entries"]).to_html(index=False, float_format="%.4f", na_rep=""),
    )


def export(study: Study, target: Path = REFERENCE) -> list[Path]:
    """Publish a finished study: tables (judgements as votes with counts, no completions), results, figures, notebooks."""
    source, written = study_dir(study), []
    for name in TABLES:
        written.append(write_table(target / f"{name}.parquet", read_table(source / f"{name}.parquet")))
    votes = read_table(source / "judgements.parquet").drop(columns=["sample"])
    votes = votes.groupby(list(votes.columns), dropna=False, sort=True).size().rename("count").reset_index()
    written.append(write_table(target / "judgements.parquet", votes))
    for name in ("results.json", "environment.json", "params.yaml"):
        shutil.copyfile(source / name, target / name)
    (target / "figures").mkdir(exist_ok=True)
    for path in sorted((source / "figures").iterdir()):
        if path.stem not in UNPUBLISHED_FIGURES:
            shutil.copyfile(path, target / "figures" / path.name)
    for path in sorted((source / "notebooks").glob("**/*.ipynb")):
        copy = target / "notebooks" / path.relative_to(source / "notebooks")
        written.append(write_text(copy, readable_notebook(json.loads(path.read_text(encoding="utf-8")))))
    return written


def readable_notebook(notebook: dict) -> str:
    """An executed notebook for readers: text and pictures, without warnings on stderr and the paths of the machine."""
    for cell in notebook["cells"]:
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k == "tags"}
        if "outputs" in cell:
            cell["outputs"] = [o for o in cell["outputs"] if o.get("name") != "stderr"]
    notebook["metadata"] = {k: v for k, v in notebook["metadata"].items() if k in ("kernelspec", "language_info")}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def write_results(study: Study) -> dict:
    """results.json, params.yaml, environment.json and report.html of a study."""
    folder = study_dir(study)
    first = folder / "runs" / "main" / study.cohorts[0] / f"seed{study.seeds[0]}" / "params.yaml"
    grpo = yaml.safe_load(first.read_text())["grpo_config"]
    write_params(folder / "params.yaml", study.model_dump() | {"grpo_config": grpo})
    write_json(folder / "environment.json", environment())
    found = results(study, load_tables(folder))
    write_json(folder / "results.json", found)
    write_text(folder / "report.html", page(found, folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lad_utils.report", description="Publish a finished study.")
    parser.add_argument(
        "command", choices=["export"], help="copy its tables, results, figures and notebooks to outputs/reference/micro"
    )
    parser.add_argument("study")
    study = load_study(parser.parse_args().study)
    print(f"{len(export(study))} files written to outputs/reference/micro")
    found = json.loads((REFERENCE / "results.json").read_text())
    readme = REFERENCE.parents[2] / "README.md"
    write_text(readme, readme_with(readme.read_text(encoding="utf-8"), found))
    print("README table and findings updated")


if __name__ == "__main__":
    main()
