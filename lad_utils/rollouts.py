"""Sample completions from a model under one contract, resumably, and judge them with a cohort's own labels.

An engine is a function `engine(prompts, k=..., seed=..., greedy=False) -> rollouts`, where `prompts` is a table with
task_id and prompt and `rollouts` has one row a completion: task_id, sample, completion, n_tokens, finish_reason
(`stop` or `length`), prompt_tokens.
"""

import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lad_utils.params import REPOSITORY, Study
from lad_utils.runs import base_digest, base_folder, read_table, write_table

SPLITS = {"screen": 1, "score": 2, "eval": 3, "eval_greedy": 4, "target": 5, "extra": 6, "zeros": 7, "tight": 8}
SPLITS |= {"draw_1": 9, "draw_2": 10, "draw_3": 11, "cool": 12, "selection": 13, "shift": 14}
SPLITS |= {"smaller_eval": 15, "smaller_eval_greedy": 16}
COMPLETIONS_PER_BATCH = 256
Engine = Callable[..., pd.DataFrame]


@dataclass(frozen=True)
class Sampler:
    """How text is sampled: the one contract of scoring, GRPO's generation and evaluation. top_p=1 and top_k off, always."""

    prompt_template: str
    stop: tuple[str, ...]
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0

    def text(self, prompt: str) -> str:
        return self.prompt_template.replace("{prompt}", prompt)

    def generate_kwargs(self, *, greedy: bool = False) -> dict:
        """For transformers' `generate`."""
        stop = {"stop_strings": list(self.stop)} if self.stop else {}
        if greedy:
            return {"do_sample": False, "max_new_tokens": self.max_new_tokens} | stop
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {"do_sample": True, "max_new_tokens": self.max_new_tokens} | sampling | stop

    def grpo_kwargs(self) -> dict:
        """For TRL's `GRPOConfig`."""
        if self.stop:
            raise ValueError(f"stop strings {list(self.stop)} cannot be honoured by TRL's own generation: leave `stop` empty")
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_completion_length": self.max_new_tokens,
        }


def sampler_of(study: Study) -> Sampler:
    return Sampler(study.prompt_template, tuple(study.stop), study.max_new_tokens, study.temperature)


def load_model(folder: str | Path):
    """(model, tokenizer) of a local folder or a hub id; safetensors only."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    # eager attention: at these lengths it is the fastest on a CPU, and the same numbers come out everywhere
    model = AutoModelForCausalLM.from_pretrained(source, use_safetensors=True, attn_implementation="eager")
    return model.eval(), tokenizer


def transformers_engine(model, tokenizer, sampler: Sampler, *, batch_size: int = COMPLETIONS_PER_BATCH) -> Engine:
    """Sample with transformers' `generate`, `batch_size` completions at a time."""
    import torch

    def engine(prompts: pd.DataFrame, *, k: int, seed: int, greedy: bool = False) -> pd.DataFrame:
        torch.manual_seed(seed)
        encoded = [tokenizer(sampler.text(p)).input_ids for p in prompts["prompt"]]
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))  # neighbours of like length: little padding
        step = max(1, batch_size // k)
        results = {}
        for start in range(0, len(order), step):
            batch = order[start : start + step]
            inputs = tokenizer.pad({"input_ids": [encoded[i] for i in batch]}, return_tensors="pt")
            with torch.inference_mode():
                output = model.generate(
                    **inputs,
                    **sampler.generate_kwargs(greedy=greedy),
                    num_return_sequences=k,
                    pad_token_id=tokenizer.pad_token_id,
                    **({"tokenizer": tokenizer} if sampler.stop else {}),
                )
            completions = output[:, inputs.input_ids.shape[1] :]
            ended = completions == tokenizer.eos_token_id
            n_tokens = torch.where(ended.any(1), ended.int().argmax(1) + 1, completions.shape[1])
            text = tokenizer.batch_decode(completions, skip_special_tokens=True)
            for row, (n, stop) in enumerate(zip(n_tokens.tolist(), ended.any(1).tolist(), strict=True)):
                finish = "stop" if stop or n < sampler.max_new_tokens else "length"
                results[batch[row // k], row % k] = (text[row], n, finish)
        rows = [
            (task_id, sample, *results[i, sample], len(encoded[i]))
            for i, task_id in enumerate(prompts["task_id"])
            for sample in range(k)
        ]
        return pd.DataFrame(rows, columns=["task_id", "sample", "completion", "n_tokens", "finish_reason", "prompt_tokens"])

    return engine


def replay_engine(table: pd.DataFrame) -> Engine:
    """Serve stored rollouts instead of sampling; asks for more than is stored are errors that say what is missing."""
    stored = dict(list(table.groupby("task_id")))

    def engine(prompts: pd.DataFrame, *, k: int, seed: int, greedy: bool = False) -> pd.DataFrame:
        short = [t for t in prompts["task_id"] if len(stored.get(t, ())) < k]
        if short:
            raise ValueError(
                f"replay: {len(short)} of {len(prompts)} tasks have fewer than {k} stored rollouts, first {short[0]!r}"
            )
        parts = [stored[t].sort_values("sample").head(k) for t in prompts["task_id"]]
        return pd.concat(parts, ignore_index=True).drop(columns="split", errors="ignore")

    return engine


_engine: Engine | None = None  # one a worker process


def _start_worker(base: Path, sampler: Sampler, batch_size: int) -> None:
    import torch

    global _engine
    torch.set_num_threads(1)
    _engine = transformers_engine(*load_model(base), sampler, batch_size=batch_size)


def _work(chunk: pd.DataFrame, k: int, seed: int, greedy: bool, path: Path) -> Path:
    started = time.monotonic()
    table = _engine(chunk, k=k, seed=seed, greedy=greedy)
    write_table(path, table.assign(seconds=(time.monotonic() - started) / len(table)))
    return path


def collect_rollouts(
    study: Study,
    tasks: pd.DataFrame,
    *,
    split: str,
    k: int,
    folder: Path,
    cores: int = 1,
    greedy: bool = False,
    batch_size: int = COMPLETIONS_PER_BATCH,
    model: str = "base",
) -> pd.DataFrame:
    """k completions of every task of `tasks`, from `folder/<split>.parquet` if it holds just these.

    They are the base model's, or those of the study's model called `model` (see runs.base_folder).

    Works by chunks, each written atomically, so that a kill loses at most a chunk a core. Chunks have their own seeds:
    the result does not depend on `cores`. Prints the rate.
    """
    if tasks["task_id"].duplicated().any():
        raise ValueError(f"collect_rollouts: task_id {tasks['task_id'][tasks['task_id'].duplicated()].iloc[0]!r} appears twice")
    sampler, final = sampler_of(study), Path(folder) / f"{split}.parquet"
    recipe = [
        asdict(sampler),
        base_digest(study, model),
        study.world_seed,
        split,
        k,
        greedy,
        batch_size,
        tasks[["task_id", "prompt"]].to_numpy().tolist(),
    ]
    digest = hashlib.blake2b(json.dumps(recipe).encode(), digest_size=6).hexdigest()
    if final.is_file() and _digest_of(final) == digest:
        return read_table(final)
    if study.engine == "replay":
        stored = read_table(REPOSITORY / study.replay_folder / f"{split}.parquet")
        if set(stored["recipe"]) != {digest}:
            raise ValueError(
                f"replay: {study.replay_folder}/{split}.parquet holds rollouts of another recipe than this study's"
            )
        return _finish(replay_engine(stored)(tasks, k=k, seed=0), split, digest, final)
    size = max(1, 8 * batch_size // k)
    chunks = [tasks.iloc[i : i + size] for i in range(0, len(tasks), size)]
    chunk_folder = Path(folder) / f".{split}-{digest}"
    paths = [chunk_folder / f"{i:05d}.parquet" for i in range(len(chunks))]
    todo = [i for i, path in enumerate(paths) if not path.is_file()]
    seeds = np.random.SeedSequence([study.world_seed, 5, SPLITS[split]]).generate_state(len(chunks))
    jobs = [(chunks[i], k, int(seeds[i]), greedy, paths[i]) for i in todo]
    _sample_chunks((base_folder(study, model), sampler, batch_size), jobs, k=k, cores=cores, split=split)
    return _finish(pd.concat([read_table(p) for p in paths], ignore_index=True), split, digest, final)


def _sample_chunks(worker: tuple, jobs: list, *, k: int, cores: int, split: str) -> None:
    from tqdm.auto import tqdm

    if not jobs:
        return
    started, total = time.monotonic(), sum(len(job[0]) for job in jobs) * k
    bar = tqdm(total=total, unit="rollout", desc=split)
    if min(cores, len(jobs)) == 1:
        _start_worker(*worker)
        for job in jobs:
            _work(*job)
            bar.update(len(job[0]) * k)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores, context, _start_worker, worker) as pool:
            running = {pool.submit(_work, *job): len(job[0]) * k for job in jobs}
            for future in as_completed(running):
                future.result()
                bar.update(running[future])
    bar.close()
    seconds = time.monotonic() - started
    print(f"{split}: {total:,} rollouts in {seconds:.0f} s, {total / seconds:,.0f} a second")


def _finish(table: pd.DataFrame, split: str, digest: str, path: Path) -> pd.DataFrame:
    table = table.assign(split=split, recipe=digest)
    write_table(path, table)
    return table


def _digest_of(path: Path) -> str:
    return pd.read_parquet(path, columns=["recipe"])["recipe"].iloc[0]


def judge(rollouts: pd.DataFrame, cohorts: pd.DataFrame) -> pd.DataFrame:
    """Rewards of stored rollouts by each cohort's own labels and verifier: the `judgements` table.

    Copies of a task share its rollouts. Columns: arm, cohort, position, task_id, sample, parsed, formatted (the answer has a
    marker or box, so that the strict verdict counts it), truncated, reward; the last three 0 or 1.
    """
    from lad_utils.cohorts import VERIFIERS
    from lad_utils.verifier import extract, extract_strict

    cut = (rollouts["finish_reason"] == "length").astype(int)
    by_task = {
        t: (g["sample"].tolist(), g["completion"].tolist(), g["cut"].tolist())
        for t, g in rollouts.assign(cut=cut).groupby("task_id", sort=False)
    }
    missing = sorted(set(cohorts["task_id"]) - by_task.keys())
    if missing:
        raise ValueError(f"judge: {len(missing)} tasks of the cohorts have no rollouts, first {missing[0]!r}")
    parsed = {t: [extract(c) for c in completions] for t, (_, completions, _) in by_task.items()}
    formatted = {t: [int(extract_strict(c) is not None) for c in completions] for t, (_, completions, _) in by_task.items()}
    verdicts: dict[tuple, list[int]] = {}
    names = ("arm", "cohort", "position", "task_id", "sample", "parsed", "formatted", "truncated", "reward")
    columns: dict[str, list] = {n: [] for n in names}
    for row in cohorts.itertuples():
        samples, completions, truncated = by_task[row.task_id]
        key = (row.task_id, row.answer, row.verifier)
        if key not in verdicts:
            check = VERIFIERS[row.verifier]
            verdicts[key] = [int(check(c, row.answer)) for c in completions]
        n = len(samples)
        for name, values in (("arm", [row.arm] * n), ("cohort", [row.cohort] * n), ("position", [row.position] * n)):
            columns[name] += values
        columns["task_id"] += [row.task_id] * n
        columns["sample"] += samples
        columns["parsed"] += parsed[row.task_id]
        columns["formatted"] += formatted[row.task_id]
        columns["truncated"] += truncated
        columns["reward"] += verdicts[key]
    return pd.DataFrame(columns)


def counts(judgements: pd.DataFrame) -> pd.DataFrame:
    """Successes c and rollouts k by arm, cohort and position."""
    grouped = judgements.groupby(["arm", "cohort", "position", "task_id"], sort=False)["reward"]
    return grouped.agg(correct="sum", k="size").reset_index()


def totals(*tables: pd.DataFrame) -> pd.DataFrame:
    """What sampling cost by split and task: n, generated_tokens, prompt_tokens, truncated, seconds."""
    rollouts = pd.concat(tables, ignore_index=True)
    rollouts["truncated"] = rollouts["finish_reason"] == "length"
    grouped = rollouts.groupby(["split", "task_id"], sort=False)
    return grouped.agg(
        n=("sample", "size"),
        generated_tokens=("n_tokens", "sum"),
        prompt_tokens=("prompt_tokens", "sum"),
        truncated=("truncated", "sum"),
        seconds=("seconds", "sum"),
    ).reset_index()
