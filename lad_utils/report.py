"""From a study's tables to what people read: scores, results.json, the results table, one page, the published files."""

import argparse
import base64
import html
import json
import shutil
from pathlib import Path

import pandas as pd
import yaml

from lad_utils.baseline_words import baselines, cost_table
from lad_utils.claims import failure_modes, predictions, prototype_claims, single_problems
from lad_utils.entries import all_entries
from lad_utils.findings import findings, readme_with, reliability, results_table
from lad_utils.params import REPOSITORY, TRAINERS, Study, load_study
from lad_utils.published_view import limits, published_findings
from lad_utils.runs import (
    PUBLISHED,
    REFERENCE,
    environment,
    read_table,
    study_dir,
    write_json,
    write_params,
    write_table,
    write_text,
)
from lad_utils.training_words import online_sampling, other_trainers, prices
from lad_utils.validation import validated

TABLES = (
    "tasks",
    "cohorts",
    "rollout_totals",
    "target_counts",
    "scores",
    "task_signals",
    "baseline_costs",
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
    "curves",
    "task_gains",
    "ablations",
    "problem_counts",
    "problem_features",
    "problem_transfer",
    "cool_counts",
    "costs",
)
# What results.json and the README say in words, each written from the entries.
WORDS = {
    "table": results_table,
    "baselines": baselines,
    "costs": cost_table,
    "findings": findings,
    "claims": prototype_claims,
    "failure_modes": failure_modes,
    "predictions": predictions,
    "trainers": other_trainers,
    "online": online_sampling,
    "prices": prices,
    "problems": single_problems,
    "reliability": reliability,
    "published": published_findings,
    "limits": limits,
}
PARTS = {
    "findings": "What came out",
    "baselines": "Every metric and its cost",
    "failure_modes": "Failure modes, signs written down beforehand",
    "predictions": "Predicted lift",
    "trainers": "Other trainers",
    "online": "The next task, chosen while training",
    "prices": "What a dollar buys",
    "reliability": "How far a score can be relied on",
    "published": "What published runs say",
    "limits": "Blind spots in published runs",
}
UNPUBLISHED_ARMS = (
    "size-",
    "mixture-",
    "short-",
    "small-",
    "online-",
    *(f"{t}-" for t in TRAINERS),
)  # executed notebooks of their runs: many, and all alike
UNPUBLISHED_FIGURES = ("cohorts", "pass_rates", "lad_by_cohort")  # large, and in the executed notebooks


def results(study: Study, tables: dict[str, pd.DataFrame]) -> dict:
    """The content of results.json; its commits are those of the code that trained the runs."""
    commits = ", ".join(sorted(set(tables["lifts"]["commit"])))
    entries = all_entries(study, tables)
    found = {e["name"]: e for e in entries}
    words = {name: write(found) for name, write in WORDS.items()}
    words["table"] += f"\n\nTrained at commits {commits}."
    return {
        "study": study.study,
        "commits": commits,
        "n_cohorts": len(validated(tables["scores"], tables["lifts"], tables["eval_questions"])),
        "n_seeds": len(study.seeds),
        "invalid_runs": sorted({f"{r.run_id}: {r.invalid}" for r in tables["lifts"].itertuples() if r.invalid}),
        **words,
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
<p>Study <b>{study}</b>, commits {commits}: {n_cohorts} cohorts, {n_seeds} seeds each.
Every number comes from <code>results.json</code>, which names the raw file behind it. {invalid}</p>
{table}
{parts}
<h2>What each metric costs</h2>
{costs}
{figures}
<h2>All numbers</h2>
{entries}
</body></html>
"""

CAPTIONS = {
    "lift_against_lad": "LAD before training against the lift that GRPO then gave, one point a cohort.",
    "lift_against_lad_mixtures": "The same for mixtures of difficulty, skills, duplication and wrong labels.",
    "metric_ranking": "Spearman correlation of every metric with measured lift; the dashed line is the noise ceiling.",
    "cost_frontier": "What a metric costs and how well it then ranks the cohorts.",
    "additions_designed": "What other metrics would add to LAD, designed cohorts.",
    "additions_mixtures": "The same for mixtures.",
    "gradients_by_pass_rate": "What the gradient of a single task tells, by its pass rate.",
    "lifts": "Measured lift of every cohort, with its interval over the held-out questions.",
    "loco_null_family": "What holding out does to simulated metrics of known worth, and where the measured ones lie.",
    "contrasts": "Pairs of cohorts that differ in one property; grey is the side that was predicted.",
    "mixture_slopes": "What each property of a mixture does to its lift, the others held fixed.",
    "ablations": "Variants of LAD: how much better or worse each ranks the cohorts.",
    "predicted_designed": "Lift predicted for each designed cohort from the others.",
    "predicted_mixtures": "Lift predicted for each mixture from the designed cohorts.",
    "problem_shares": "Single problems: what each signal explains of what can be explained.",
    "published_forest": "Rank tests on other people's published runs.",
    "training_predicted": "What GRPO logged while it ran, told by LAD and by base p(1-p).",
    "mechanism": "LAD and base p(1-p) against the raw reward variance that GRPO logged, early and late.",
    "learning_curves": "Every cohort's rewards while training, by family.",
    "trainers": "LAD against lift under other trainers than GRPO with Adam.",
    "trainer_ranks": "Who ranks the cohorts under each trainer.",
    "task_gains": "What trained tasks gained by base pass rate, and which shape fits.",
    "online": "Accuracy against generated tokens by what chooses the next task.",
    "online_differences": "LAD's sampler against each other one.",
    "lift_per_dollar": "Predicted lift per dollar of what is on offer, and what was measured.",
    "budget": "What each chooser buys at every budget.",
    "causal": "What task selections of equal size, trained identically, changed.",
    "dose_response": "Lift by decile of energy, all tasks distinct.",
    "fewer_rollouts": "How well fewer rollouts rank the cohorts: adaptive, uniform, and fewer tasks.",
    "faults": "Wrong labels told from rollouts alone.",
    "zeros": "Tasks never solved, by kind, and how many further rollouts solved.",
    "size_micro": "Lift against the number of distinct tasks, at several numbers of steps.",
}


def page(found: dict, folder: Path) -> str:
    """One self-contained HTML file: the results and cost tables, the figures inlined, all entries."""
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
        commits=html.escape(found["commits"]),
        n_cohorts=found["n_cohorts"],
        n_seeds=found["n_seeds"],
        invalid=invalid,
        table=_tabled(found["table"]),
        costs=_tabled(found["costs"]),
        parts="\n".join(_listed(title, found[part]) for part, title in PARTS.items()),
        figures="\n".join(figures),
        entries=pd.DataFrame(found["entries"]).to_html(index=False, float_format="%.4f", na_rep=""),
    )


def _tabled(text: str) -> str:
    """A table of Markdown as one of HTML."""
    rows = [[c.strip() for c in line.strip("| ").split(" | ")] for line in text.splitlines() if line.startswith("|")]
    return pd.DataFrame(rows[2:], columns=rows[0]).map(lambda c: c.replace("*", "").replace("`", "")).to_html(index=False)


def _listed(title: str, text: str) -> str:
    """Bullets of Markdown as a headed list of HTML."""
    items = "".join(f"<li>{html.escape(line[2:].replace('**', ''))}</li>" for line in text.splitlines())
    return f"<h2>{title}</h2>\n<ul>{items}</ul>"


def export(study: Study) -> list[Path]:
    """Publish a finished study in outputs/reference: tables (judgements as votes with counts), results, figures, notebooks."""
    source, target, written = study_dir(study), REFERENCE.parent / PUBLISHED[study.study], []
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
        if path.name.startswith(UNPUBLISHED_ARMS):
            continue
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
        "command", choices=["export"], help="copy its tables, results, figures and notebooks to outputs/reference"
    )
    parser.add_argument("study", choices=[*PUBLISHED])
    study = load_study(parser.parse_args().study)
    print(f"{len(export(study))} files written to outputs/reference/{PUBLISHED[study.study]}")
    readme = REPOSITORY / "README.md"
    write_text(readme, readme_with(readme.read_text(encoding="utf-8"), published_words()))
    print("README updated from all published studies")


def published_words() -> dict[str, str]:
    """README marker -> the words that published studies wrote for it; those of a second base model start with its name."""
    words = {}
    for name, folder in PUBLISHED.items():
        path = REFERENCE.parent / folder / "results.json"
        if path.is_file():
            found, prefix = json.loads(path.read_text(encoding="utf-8")), "" if folder == "micro" else f"{name}."
            words |= {prefix + key: found[key] for key in WORDS if key in found}
    return words


if __name__ == "__main__":
    main()
