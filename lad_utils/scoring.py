"""Score a task set from files alone: stored rollouts (Parquet) and stored embeddings, no model, a million tasks at a time."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lad_utils.diversity import vendi
from lad_utils.energy import informative_group_rate, task_energies
from lad_utils.score import energy_interval

BATCH_ROWS = 2**20


class SetScore(NamedTuple):
    """What a set is worth by its stored rollouts."""

    lad: float
    low: float
    high: float
    energy: float
    vendi: float
    n_tasks: int
    n_rollouts: int
    n_abstained: int  # rollouts without a verdict: left out and counted
    informative_groups: float  # share of GRPO groups of 2 that would hold both rewards, for a feel
    note: str


def count_rollouts(path, *, task_id: str = "task_id", reward: str = "reward") -> pd.DataFrame:
    """Successes and rollouts a task from a Parquet file with one row a rollout: columns task_id, correct, k, abstained.

    Rewards are 0 or 1 (numbers or booleans); null and NaN abstain, which is counted and no failure. Any other reward is a
    ValueError naming the row. Tasks come in the order of their first row. Reads two columns, a batch of rows at a time.
    """
    path = Path(path)
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path.name}: not a readable Parquet file ({str(error).splitlines()[0][:100]})") from None
    missing = [name for name in (task_id, reward) if name not in file.schema_arrow.names]
    if missing:
        raise ValueError(f"{path.name}: found columns {file.schema_arrow.names[:12]}, expected {missing[0]!r} among them")
    partial, start = [], 0
    for batch in file.iter_batches(BATCH_ROWS, columns=[task_id, reward]):
        ids, values = batch.column(task_id), pc.cast(batch.column(reward), pa.float64())
        if ids.null_count:
            row = start + int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0])
            raise ValueError(f"{path.name}: row {row} has no {task_id}")
        values = pc.if_else(pc.is_nan(values), None, values)
        allowed = pc.fill_null(pc.or_(pc.equal(values, 0.0), pc.equal(values, 1.0)), True)
        if not pc.all(allowed).as_py():
            row = int(np.flatnonzero(~allowed.to_numpy(zero_copy_only=False))[0])
            raise ValueError(f"{path.name}: row {start + row} has {reward}={values[row].as_py()}, expected 0 or 1")
        table = pa.table({"task_id": ids, "right": values})
        partial.append(
            table.group_by("task_id", use_threads=False).aggregate([("right", "sum"), ("right", "count"), ([], "count_all")])
        )
        start += len(batch)
    if not start:
        raise ValueError(f"{path.name}: found no rows, expected at least one rollout")
    whole = pa.concat_tables(partial).group_by("task_id", use_threads=False)
    whole = whole.aggregate([("right_sum", "sum"), ("right_count", "sum"), ("count_all", "sum")])
    correct, k, rows = (whole.column(f"{c}_sum").to_numpy() for c in ("right_sum", "right_count", "count_all"))
    counted = pd.DataFrame({"correct": np.nan_to_num(correct).astype(np.int64), "k": k, "abstained": rows - k})
    counted.insert(0, "task_id", whole.column("task_id").to_pandas())
    return counted


def score_files(rollouts, embeddings, *, gamma: float = 1, beta: float = 1, q: float = 1) -> tuple[SetScore, pd.DataFrame]:
    """(score of the set, per-task table) from stored rollouts and their tasks' embeddings.

    `embeddings` is an array or a .npy file, shape (tasks, d), row i for the i-th task in order of first appearance in
    `rollouts`; a file is mapped, not loaded. Tasks with fewer than 2 verdicts are left out of the score and have
    `scored` False in the table: k=1 says nothing of a spread.
    """
    table = count_rollouts(rollouts)
    x = (
        np.load(embeddings, mmap_mode="r", allow_pickle=False)
        if isinstance(embeddings, (str, Path))
        else np.asarray(embeddings)
    )
    if len(x) != len(table):
        raise ValueError(f"score_files: {len(table)} tasks in the rollouts but {len(x)} embeddings")
    table["scored"] = table["k"] >= 2
    kept = table[table["scored"]]
    if kept.empty:
        raise ValueError("score_files: no task has 2 verdicts or more, so nothing tells the spread of p")
    correct, k = kept["correct"].to_numpy(), kept["k"].to_numpy()
    energies = task_energies(correct, k, gamma)
    table.loc[table["scored"], ["energy", "energy_se"]] = np.column_stack([energies.value, energies.se])
    mean, low, high = energy_interval(correct, k, gamma)
    diversity = vendi(x if len(kept) == len(table) else x[table["scored"].to_numpy()], q)
    factor = (diversity / len(kept)) ** beta
    groups = float(informative_group_rate(correct, k, 2).mean())
    left_out = len(table) - len(kept)
    note = energies.note + (f"; {left_out} tasks with fewer than 2 verdicts left out" if left_out else "")
    n = int(table["k"].sum()), int(table["abstained"].sum())
    return SetScore(mean * factor, low * factor, high * factor, mean, diversity, len(kept), *n, groups, note), table
