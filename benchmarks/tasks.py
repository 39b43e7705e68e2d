"""How fast task files are read, filtered and checked for overlap, beside pandas and the naive definition.

    python benchmarks/tasks.py [rows]

Made-up rows of GSM8K's size (question of 45 words, solution that ends in `#### n`), a million unless told. `load_tasks` also
finds the gold, checks and counts; pandas only parses, so its ratio is the price of that. `overlap` takes rows/10 prompts and
rows/100 evaluation prompts; its naive definition is timed on a hundredth of the pairs and scaled. Seconds are CPU time.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from lad_utils.tasks import SHORTEST_CONTAINED, load_tasks, normalise_prompt, overlap, write_like


def seconds(call, *args, **options) -> tuple[float, object]:
    started = time.process_time()
    value = call(*args, **options)
    return time.process_time() - started, value


def naive_overlap(prompts: list[str], references: list[str]) -> list[bool]:
    references = [normalise_prompt(text) for text in references]

    def found(text: str) -> bool:
        long = [other for other in references if min(len(text), len(other)) >= SHORTEST_CONTAINED]
        return text in references or any(text in other or other in text for other in long)

    return [found(normalise_prompt(prompt)) for prompt in prompts]


def main(n: int) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(5000)]
    rows = []
    for row in range(n):
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        question = " ".join(rng.choices(words, k=45)).capitalize() + f" {a} and {b}?"
        solution = f"{' '.join(rng.choices(words, k=30))} {a} + {b} = <<{a}+{b}={a + b}>>{a + b}"
        rows.append({"question": f"{row}. {question}", "answer": f"{solution}\n#### {a + b}"})
    with tempfile.TemporaryDirectory() as folder:
        lines, parquet = Path(folder) / "tasks.jsonl", Path(folder) / "tasks.parquet"
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        pd.DataFrame(rows).to_parquet(parquet)
        del rows
        print(f"{n} rows, {lines.stat().st_size / 1e6:.0f} MB of JSONL\n{'':24}seconds   rows/s   times the peer")
        for name, path, peer in (("JSONL", lines, lambda: pd.read_json(lines, lines=True)), ("Parquet", parquet, None)):
            peer = peer or (lambda: pd.read_parquet(parquet))
            (ours, table), (theirs, _) = seconds(load_tasks, path), seconds(peer)
            print(f"{'load_tasks ' + name:24}{ours:7.1f}{n / ours:9.0f}   {ours / theirs:.1f} (pandas {theirs:.1f} s)")
            half = table.sample(frac=0.5, random_state=0)
            ours, _ = seconds(write_like, half, path, Path(folder) / f"half{path.suffix}")
            print(f"{'write_like ' + name + ', half':24}{ours:7.1f}{n / ours:9.0f}")
    prompts, references = table["prompt"][: n // 10].tolist(), table["prompt"][-(n // 100) :].tolist()
    ours, flags = seconds(overlap, prompts, references)
    theirs, same = seconds(naive_overlap, prompts[: n // 100], references[: n // 1000])
    assert not any(flags) and not any(same)
    print(f"{'overlap':24}{ours:7.1f}{len(prompts) / ours:9.0f}   {ours / (100 * theirs):.4f} (naive {100 * theirs:.0f} s)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
