"""Vendi against the bare Gram product and against vendi-score; near-duplicates planted among many; Vendi by embedder.

    python benchmarks/diversity.py [vendi | peer | duplicates | embedders | all] [rows]

Without a name all four run, at a million rows. Ratios are of the best of alternating repetitions in one process, by the clock
and in CPU time; where others load the machine, seconds mean little, ratios by the clock are noisy and those in CPU time hold
with OMP_NUM_THREADS=1. Memory is the peak above what the data take, of a process of its own.

vendi       n rows of 384 float32 with variances falling from 1 to 1/100, as they are or made unit (as embedders give them);
            the bare product is X[i:j].T @ X[i:j] in the same chunks. "8 distinct" repeats 8 rows: of so low a rank float32
            products do not tell, and a second pass in float64 follows.
peer        n = 4,096 against `vendi_score.vendi.score_dual` (pip install vendi-score), if it is there.
duplicates  stories of 40 made-up words, every tenth an earlier one with up to 7 words replaced or else only its case and
            punctuation changed; recall of those by true similarity; `false` is the share of 2,000 reported similarities that
            do not recompute. "template": one text with other numbers, names and things.
embedders   sets of 256 prompts, from copies of one to a mix of topics.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lad_utils.diversity import CHUNK_ROWS, near_duplicates, vendi

DIMENSIONS = 384
GROUPS = [(0.7, 0.75), (0.75, 0.8), (0.8, 0.9), (0.9, 1.0), (1.0, 1.01)]


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def best_seconds(*calls, repeat: int) -> np.ndarray:
    """Best time of each call, the calls taking turns: by the clock and in CPU time, shape (2, number of calls)."""
    seconds = np.empty((repeat, 2, len(calls)))
    for r in range(repeat):
        for i, call in enumerate(calls):
            clock, cpu = time.perf_counter(), time.process_time()
            call()
            seconds[r, :, i] = time.perf_counter() - clock, time.process_time() - cpu
    return seconds.min(axis=0)


def bare_product(x: np.ndarray) -> None:
    for start in range(0, len(x), CHUNK_ROWS):
        chunk = x[start : start + CHUNK_ROWS]
        chunk.T @ chunk


def rows_of(n: int, kind: str) -> np.ndarray:
    """(n, 384) float32, filled in place, so that the peak before scoring is the data."""
    rng, x = np.random.default_rng(0), np.empty((n, DIMENSIONS), np.float32)
    few = rng.standard_normal((8, DIMENSIONS), np.float32)
    for start in range(0, n, 4096):
        chunk = x[start : start + 4096]
        if kind == "8 distinct":
            chunk[:] = few[np.arange(len(chunk)) % 8]
            continue
        rng.standard_normal(dtype=np.float32, out=chunk)
        chunk *= np.geomspace(1, 0.1, DIMENSIONS, dtype=np.float32)
        if kind == "unit":
            chunk /= np.linalg.norm(chunk, axis=1, keepdims=True)
    return x


def one_vendi(n: int, kind: str) -> None:
    x = rows_of(n, kind)
    vendi(x[:1000])
    before = peak_megabytes()
    score = vendi(x)
    above = peak_megabytes() - before
    (ours, bare), (ours_cpu, bare_cpu) = best_seconds(lambda: vendi(x), lambda: bare_product(x), repeat=5)
    print(f"{n:>9,} {kind:>10} {score:>8.2f} {ours:>8.2f} {ours / bare:>8.2f} {ours_cpu / bare_cpu:>8.2f}", end=" ")
    print(f"{above:>8.0f} {x.nbytes / 2**20:>8.0f}", flush=True)


def each_alone(part: str, header: str, calls: list[tuple]) -> None:
    print(header, flush=True)
    for arguments in calls:
        subprocess.run([sys.executable, __file__, part, *map(str, arguments)], check=True)


def against_peer() -> None:
    try:
        from vendi_score.vendi import score_dual
    except ImportError:
        print("vendi-score is not installed: no comparison at n=4,096")
        return
    print(f"{'n=4,096':>9} {'rows':>10} {'ms':>8} {'peer ms':>8} {'x peer':>8} {'CPU x':>8} {'relative difference':>20}")
    for dtype in (np.float32, np.float64):
        for kind in ("as drawn", "unit"):
            x = rows_of(4096, kind).astype(dtype)
            seconds = best_seconds(lambda x=x: vendi(x), lambda x=x: score_dual(x), repeat=100)
            (ours, peer), (clock, cpu) = 1e3 * seconds[0], seconds[:, 0] / seconds[:, 1]
            apart = abs(vendi(x) / score_dual(x) - 1)
            print(
                f"{dtype.__name__:>9} {kind:>10} {ours:>8.1f} {peer:>8.1f} {clock:>8.2f} {cpu:>8.2f} {apart:>20.1e}", flush=True
            )


def stories(n: int, rng: np.random.Generator) -> tuple[list[str], dict[int, int]]:
    """n prompts, and of each planted one (every tenth) the row that it was made from."""
    words = np.array(["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), rng.integers(2, 9))) for _ in range(5000)])
    chance = 1 / np.arange(1, 5001)
    prompts, source = [], {}
    while len(prompts) < n:
        for text in rng.choice(words, (1000, 40), p=chance / chance.sum()).tolist():
            text[7], text[30] = map(str, rng.integers(2, 100, 2))
            prompts.append(" ".join(text) + "?")
        for row in rng.integers(0, len(prompts), 111).tolist():
            text = prompts[row].split(" ")
            edit = rng.integers(0, 8)
            for at in rng.choice(39, edit, replace=False):
                text[at] = str(rng.choice(words))
            source[len(prompts)] = row
            prompts.append(" ".join(text) if edit else " ".join(text).upper().replace(" ", ", "))
    return prompts[:n], {later: row for later, row in source.items() if later < n}


def templates(n: int, rng: np.random.Generator) -> list[str]:
    names = ["Tom", "Ana", "Leo", "Mia", "Sam", "Eva", "Ben", "Zoe"]
    things = ["apples", "coins", "books", "eggs", "stamps", "cards", "shells", "pens"]
    form = (
        "{n} has {a} {t} in a large basket at home. {n} buys {b} more {t} at the market and then gives {c} of them to a good "
        "friend. How many {t} does {n} have at the end of the day?"
    )
    which, numbers = rng.integers(0, 8, (n, 2)).tolist(), rng.integers(2, 1000, (n, 3)).tolist()
    return [form.format(n=names[i], t=things[j], a=a, b=b, c=c) for (i, j), (a, b, c) in zip(which, numbers)]


def pieces(text: str) -> set[str]:
    text = "".join(c for c in text.lower() if c.isalnum())
    return {text[i : i + 5] for i in range(len(text) - 4)}


def jaccard(one: str, other: str) -> float:
    one, other = pieces(one), pieces(other)
    return len(one & other) / len(one | other)


def write_prompts(folder: Path, n: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    prompts, source = stories(n, rng) if kind == "stories" else (templates(n, rng), {})
    (folder / "prompts.txt").write_text("\n".join(prompts))
    (folder / "source.json").write_text(json.dumps(list(source.items())[:20_000]))


def one_duplicates(n: int, kind: str) -> None:
    """Makes the prompts in one process and reports them in another, whose memory holds nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        for step in ("write", "report"):
            subprocess.run([sys.executable, __file__, step, folder, str(n), kind], check=True)


def report_prompts(folder: Path, n: int, kind: str) -> None:
    with open(folder / "prompts.txt") as file:
        prompts = [line.rstrip("\n") for line in file]
    before, clock, cpu = peak_megabytes(), time.perf_counter(), time.process_time()
    report = near_duplicates(prompts)
    clock, cpu, above = time.perf_counter() - clock, time.process_time() - cpu, peak_megabytes() - before
    reported = np.flatnonzero(report["earlier"] >= 0)
    checked = np.random.default_rng(0).choice(reported, min(2000, len(reported)), replace=False)
    exact = np.array([jaccard(prompts[i], prompts[report["earlier"][i]]) for i in checked])
    false = np.mean(np.abs(exact - report["similarity"][checked]) > 1e-9)
    print(f"{n:>9,} {kind:>10} {clock:>8.0f} {cpu:>8.0f} {above:>8.0f} {len(reported) / n:>8.3f} {false:>8.3f}", end="  ")
    source = json.loads((folder / "source.json").read_text())
    planted = np.array([[later, jaccard(prompts[later], prompts[row])] for later, row in source])
    for low, high in GROUPS if len(planted) else []:
        some = planted[(planted[:, 1] >= low) & (planted[:, 1] < high), 0].astype(int)
        print(f"{(report['similarity'][some] >= low).mean():.3f} ({len(some)})", end="  ")
    print(flush=True)


def by_embedder() -> None:
    from lad_utils.embeddings import EMBEDDERS, embed
    from lad_utils.micro import make_tasks, paraphrases

    tasks = make_tasks(256, split="pool", world_seed=1)
    rng = np.random.default_rng(0)
    topics = ["prove", "find", "matrix", "angle", "graph", "primes", "integral", "poem", "the", "of a", "with", "train"]
    other = [" ".join(rng.choice(topics, 12)) for _ in range(64)]
    sets = {
        "one prompt x256": tasks.prompt.tolist()[:1] * 256,
        "8 tasks x32": tasks.prompt.tolist()[:8] * 32,
        "32 paraphrases of one task x8": paraphrases(tasks.iloc[0], 32, rng=rng, prefix="p").prompt.tolist() * 8,
        "32 tasks x8": tasks.prompt.tolist()[:32] * 8,
        "256 distinct tasks": tasks.prompt.tolist(),
        "192 tasks and 64 from elsewhere": tasks.prompt.tolist()[:192] + other,
    }
    print(f"{'Vendi of 256 prompts':<32}" + "".join(f"{name:>14}" for name in EMBEDDERS))
    for name, prompts in sets.items():
        print(f"{name:<32}" + "".join(f"{vendi(embed(prompts, embedder=e)):>14.2f}" for e in EMBEDDERS), flush=True)


def main(part: str = "all", rows: int = 1_000_000) -> None:
    load = f", load {os.getloadavg()[0]:.1f} before this" if hasattr(os, "getloadavg") else ""
    print(f"{os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}{load}", flush=True)
    if part in ("vendi", "all"):
        header = f"{'n':>9} {'rows':>10} {'vendi':>8} {'seconds':>8} {'x bare':>8} {'CPU x':>8} {'MB above':>8} {'MB data':>8}"
        calls = [(rows // 10, "as drawn"), (rows, "as drawn"), (rows, "unit"), (rows // 10, "8 distinct")]
        each_alone("one_vendi", header, calls)
    if part in ("peer", "all"):
        against_peer()
    if part in ("duplicates", "all"):
        header = f"{'n':>9} {'prompts':>10} {'seconds':>8} {'CPU s':>8} {'MB above':>8} {'share':>8} {'false':>8}  "
        header += "recall (planted) at " + ", ".join(f"{low}-{high}" for low, high in GROUPS[:-1]) + ", 1"
        calls = [(rows // 10, "stories"), (rows, "stories"), (rows // 10, "template"), (rows, "template")]
        each_alone("one_duplicates", header, calls)
    if part in ("embedders", "all"):
        by_embedder()


if __name__ == "__main__":
    name, *rest = sys.argv[1:] or ["all"]
    if name in ("one_vendi", "one_duplicates"):
        {"one_vendi": one_vendi, "one_duplicates": one_duplicates}[name](int(rest[0]), rest[1])
    elif name in ("write", "report"):
        {"write": write_prompts, "report": report_prompts}[name](Path(rest[0]), int(rest[1]), rest[2])
    else:
        main(name, *map(int, rest))
