"""How long scoring a million tasks with eight rollouts each takes, from Parquet and a mapped .npy, with its memory.

    python benchmarks/scoring.py [tasks] [k]

Writes the two files to a temporary folder (2 GB at a million tasks), then scores them in a process of its own whose time, with
imports, and peak memory (resident, mapped pages of the embeddings included) it prints.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIMENSIONS = 384


def write_inputs(folder: Path, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    ids = np.char.add("task-", np.arange(n).astype("U7"))
    p = rng.beta(0.8, 1.2, n)
    table = {"task_id": np.repeat(ids, k), "reward": (rng.random(n * k) < np.repeat(p, k)).astype(np.int8)}
    pq.write_table(pa.table(table), folder / "rollouts.parquet", compression="zstd")
    out = np.lib.format.open_memmap(folder / "embeddings.npy", "w+", np.float32, (n, DIMENSIONS))
    centres = rng.normal(size=(200, DIMENSIONS))
    for start in range(0, n, 50_000):
        rows = centres[rng.integers(0, 200, min(50_000, n - start))] + rng.normal(size=(min(50_000, n - start), DIMENSIONS))
        out[start : start + 50_000] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    out.flush()


def measure(folder: Path) -> None:
    started = time.perf_counter()
    from lad_utils.scoring import score_files

    imported = time.perf_counter()
    score, table = score_files(folder / "rollouts.parquet", folder / "embeddings.npy")
    seconds = time.perf_counter() - imported
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"LAD {score.lad:.3g} [{score.low:.3g}, {score.high:.3g}], Vendi {score.vendi:.1f}, {len(table):,} tasks")
    print(f"{seconds:.1f} s (and {imported - started:.1f} s of imports), peak {peak:.2f} GB resident")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        n, k = int(sys.argv[1]) if sys.argv[1:] else 1_000_000, int(sys.argv[2]) if sys.argv[2:] else 8
        with tempfile.TemporaryDirectory() as home:
            write_inputs(Path(home), n, k)
            subprocess.run([sys.executable, __file__, "--measure", home], check=True)
