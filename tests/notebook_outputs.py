"""Check that committed notebooks hold outputs only where nbval compares them; `--fix` adds a missing `keep_output` tag.

A cell that nbval checks carries two tags: `nbval-check-output` for nbval, and `keep_output`, by which nbstripout (in the
pre-commit hook) leaves it alone. Without a checked cell, nbval passes a notebook having compared nothing.
"""

import json
import sys
from pathlib import Path

CHECKED, KEPT = "nbval-check-output", "keep_output"


def problems_of(notebook: dict) -> list[str]:
    """What is wrong with a notebook's outputs and tags, one line each."""
    found, checked = [], 0
    for index, cell in enumerate(notebook["cells"]):
        tags, outputs = cell.get("metadata", {}).get("tags", []), cell.get("outputs", [])
        if CHECKED in tags and not outputs:
            found.append(f"cell {index} is tagged {CHECKED} but holds no output: nothing is compared")
        if CHECKED in tags and outputs and cell.get("execution_count") is None:
            found.append(f"cell {index} holds outputs but no execution count: nbval takes it for never run")
        if CHECKED in tags and KEPT not in tags:
            found.append(f"cell {index} is tagged {CHECKED} but not {KEPT}: nbstripout would strip it")
        if outputs and CHECKED not in tags:
            found.append(f"cell {index} holds outputs but is not tagged {CHECKED}: strip it")
        checked += CHECKED in tags
    if not checked:
        found.append(f"no cell is tagged {CHECKED}: nbval would compare nothing")
    if not any("parameters" in cell.get("metadata", {}).get("tags", []) for cell in notebook["cells"]):
        found.append("no cell is tagged parameters: papermill would inject at the top")
    return found


def add_kept_tags(notebook: dict) -> bool:
    """Give every checked cell the tag by which nbstripout keeps it; whether any was missing."""
    lacking = [c for c in notebook["cells"] if CHECKED in (t := c.get("metadata", {}).get("tags", [])) and KEPT not in t]
    for cell in lacking:
        cell["metadata"]["tags"].append(KEPT)
    return bool(lacking)


def main(arguments: list[str]) -> int:
    found = []
    for name in (a for a in arguments if a != "--fix"):
        path = Path(name)
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found.append(f"{name}: {error}")
            continue
        if "--fix" in arguments and add_kept_tags(notebook):
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        found += [f"{name}: {problem}" for problem in problems_of(notebook)]
    print("\n".join(found) or "notebook outputs: only checked cells hold any")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
