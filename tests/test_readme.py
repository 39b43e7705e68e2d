"""What the README says can be done, done."""

import json
import re
import subprocess
import sys

from lad_utils.params import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_first_screen_names_lad_shows_a_figure_the_two_commands_and_the_table():
    first = README.splitlines()[:30]
    text = "\n".join(first)
    assert "LAD (Learnable Advantage Density)" in text and "![" in text and "make study" in text and "make test" in text
    assert any(line.startswith("| **LAD** |") for line in first) and "ceiling" in text


def test_the_example_scores_a_users_own_files(tmp_path):
    tasks = [{"id": f"t{i}", "question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(3)]
    (tmp_path / "my_tasks.jsonl").write_text("".join(json.dumps(t) + "\n" for t in tasks))
    ids = ["my_tasks-1", "my_tasks-2", "my_tasks-3"]
    rows = [{"task_id": t, "completion": f"#### {2 * i if s % 2 else 99}"} for i, t in enumerate(ids) for s in range(8)]
    (tmp_path / "my_rollouts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    value, low, high = map(float, re.search(r"LAD ([\d.]+) \[([\d.]+), ([\d.]+)\]", done.stdout).groups())
    assert 0 < low < value < high


def test_every_module_is_on_the_map():
    tree = README.split("## Map")[1]
    missing = [p.stem for p in (REPOSITORY / "lad_utils").glob("[a-z]*.py") if not re.search(rf"\b{p.stem}\b", tree)]
    assert missing == []
