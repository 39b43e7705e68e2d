"""The problem level as entries of results.json: of a study, between base models, and of a real run's history."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from lad_utils.problems import (
    RESAMPLES,
    SPLITS,
    Problems,
    base_signals,
    between_bases,
    ceiling_table,
    deal_runs,
    predictor_table,
    problem_gains,
    with_combination,
)
from lad_utils.validation import entry

LATE = range(36, 44)  # visits of the history that count as after training
NOTES = {"coupled_rho": "signal and gain share b1: not evidence", "explained_share_rank": "of ranks, approximate"}


def history_problems(path: Path) -> tuple[Problems, np.ndarray]:
    """Problems and halves from one run's training accuracy by visit: JSON {problem: [c/8 at visit 0, 1, ...]}.

    Visits 0, 1, 2 stand for the base draws and LATE visits for runs, even ones against odd ones: this ceiling lies within one
    run, so it is easier than one between runs. Raises ValueError if a problem has too few visits.
    """
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    for name, visits in found.items():
        if len(visits) <= max(LATE):
            raise ValueError(f"{Path(path).name}: problem {name} has {len(visits)} visits, {max(LATE) + 1} are needed")
    visits = pd.DataFrame({name: v[: max(LATE) + 1] for name, v in found.items()}).T
    signals = pd.DataFrame(base_signals((8 * visits[0]).round(), 8), index=visits.index)
    after, odd = visits[[*LATE]].rename(columns="history/visit{}/seed0".format), np.array(LATE) % 2
    return Problems(signals, after, visits[[0, 1, 2]].set_axis([1, 2, 3], axis=1)), np.array([[1 - odd, odd]]) / odd.sum()


def problem_entries(sets: dict[str, Problems | None], *, n_resamples: int = RESAMPLES) -> list[dict]:
    """Entries problems.<subset>.<ceiling> and problems.<subset>.<signal>.<measure> of `subsets`; 0 resamples: no intervals."""
    entries = []
    for name, problems in sets.items():
        source = f"problem_counts.parquet, problem_features.parquet, {'fresh' if name == 'fresh' else 'eval'}_questions.parquet"
        runs = 0 if problems is None else problems.after.shape[1]
        if runs < 2:
            reason = f"{runs} runs were evaluated on such problems, 2 are needed"
            entries.append(entry(f"problems.{name}.ceiling", np.nan, n=0, source=source, reason=reason))
            continue
        halves = deal_runs(problems.after.columns, n_splits=SPLITS, rng=np.random.default_rng(0))
        entries += _entries(name, problems, halves, source=source, note=f"{runs} runs", n_resamples=n_resamples)
    return entries


def history_entries(path: Path, *, n_resamples: int = RESAMPLES) -> list[dict]:
    """Entries problems.history.*: the same numbers from `history_problems`."""
    note = "within one run, training problems, visit 0 for the base"
    return _entries("history", *history_problems(path), source=Path(path).name, note=note, n_resamples=n_resamples)


def between_entries(first: Problems, second: Problems, *, source: str, n_resamples: int = RESAMPLES) -> list[dict]:
    """Entries problems.between_bases.*"""
    table = between_bases(first, second, rng=np.random.default_rng(0), n_resamples=n_resamples)
    return [_entry("between_bases", row, source=source) for row in table.to_dict("records")]


def _entries(subset: str, problems: Problems, halves, *, source: str, note: str, n_resamples: int) -> list[dict]:
    problems, args = with_combination(problems, rng=np.random.default_rng(0)), {"n_resamples": n_resamples}
    gains = problem_gains(problems.after, problems.draws, halves)
    ceilings = ceiling_table(problems.after, problems.draws, halves, rng=np.random.default_rng(0), **args)
    signals = predictor_table(problems.signals, gains, rng=np.random.default_rng(0), **args)
    rows = ceilings.to_dict("records") + signals.to_dict("records")
    return [_entry(subset, row, source=source, note=NOTES.get(row.get("measure"), note)) for row in rows]


def _entry(subset: str, row: dict, *, source: str, note: str = "") -> dict:
    name = ".".join(["problems", subset, row["name"]] + ([row["measure"]] if "measure" in row else []))
    args = {"low": row["low"], "high": row["high"], "n": row["n"], "reason": row["reason"]}
    return entry(name, row["value"], source=source, note=note, **args)
