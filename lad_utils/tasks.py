"""Read any task set (JSONL, JSON, CSV, Parquet, datasets; GSM8K, MATH, chat, verl or TRL schemas) into one table.

    {"question": "Tom has ...", "answer": "12 + 7 = 19\\n#### 19"}  becomes  task_id "train-1", prompt "Tom ...", answer "19"

No row is dropped in silence: every rejected one is listed with its line, the reason and an excerpt.
"""

import json
import os
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd

from lad_utils.runs import write_text
from lad_utils.task_files import MAX_UNPACKED_BYTES, RowError, read_records, write_records
from lad_utils.task_schemas import prompt_text, task_row
from lad_utils.task_sources import parse_source, short, stem

SHORTEST_CONTAINED = 40  # normalised characters; shorter prompts must be equal to count as overlap
PROBES = 8  # windows of a prompt among which `overlap` takes the rarest
ALWAYS_CHECKED = ("missing prompt", "missing answer", "unusable answer", "repeated task_id")
LISTED = 1000  # rejected rows in `attrs`, which pandas copies at every step; the side file has them all
FIRST = 5  # lines named in the report
MOST_COLUMNS = 1000
REPEATED, CHATS = "repeated prompt", "chat kept in messages"


def _tasks(records: Iterable[tuple[int, object]], prefix: str) -> Iterator[tuple[int, dict | RowError]]:
    """(line, row of the table or why there is none) of every record; the first usable row with a task_id has it."""
    seen = set()
    for line, record in records:
        if not isinstance(record, RowError):
            try:
                row = task_row(record, f"{prefix}-{line}")
                if row["task_id"] in seen:
                    raise RowError("repeated task_id", f"task_id: found {row['task_id']!r} again, expected it once")
                seen.add(row["task_id"])
            except RowError as error:
                row = RowError(error.kind, str(error), short(record))
        yield line, record if isinstance(record, RowError) else row


def _report(lines: list[int], kept: dict[str, list[bool]], rejected: list[dict], always: Iterable[str]) -> list[dict]:
    """Counts and first lines by kind: of the rejected rows, those of `always` even at 0, then of the kept ones by flag."""
    bad = {kind: [] for kind in always}
    for reject in rejected:
        bad.setdefault(reject["kind"], []).append(reject["line"])
    good = {kind: [line for line, flag in zip(lines, flags) if flag] for kind, flags in kept.items()}
    found = [(kind, "rejected", where) for kind, where in bad.items()]
    found += [(kind, "kept", where) for kind, where in good.items()]
    return [{"kind": kind, "rows": len(where), "outcome": outcome, "lines": where[:FIRST]} for kind, outcome, where in found]


def _warn(table: pd.DataFrame, rejected: int) -> None:
    def counts(outcome: str, passed: str = "") -> str:
        entries = [entry for entry in table.attrs["report"] if entry["outcome"] == outcome and entry["kind"] != passed]
        return ", ".join(f"{entry['kind']} {entry['rows']}" for entry in entries if entry["rows"])

    suspect = counts("kept", passed=CHATS)
    notes = [f"rejected {rejected} of {table.attrs['rows']} rows ({counts('rejected')})"] if rejected else []
    notes += [f"kept rows to look at ({suspect})"] if suspect else []
    if notes:
        warnings.warn(f"{table.attrs['source']}: {'; '.join(notes)}", stacklevel=3)


def load_tasks(
    source: str | os.PathLike,
    *,
    max_bad_share: float = 0.05,
    rejects: str | os.PathLike | None = None,
    count_tokens: Callable[[str], int] | None = None,
    max_prompt_tokens: int | None = None,
    eval_prompts: Iterable[str] | None = None,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
) -> pd.DataFrame:
    """Task table of `source` (a file, a dataset folder, a hub dataset: `lad_utils.task_sources` has the syntax).

    Columns: task_id, prompt, answer (all str), then the other columns of the input, a NaN among them being None. `task_id` is
    the input's, else `<stem>-<line>`. `prompt` of a chat is its last user turn; if the chat has other turns (system,
    few-shot, the start of an answer), they are all in `messages`, which is what a chat template wants. `messages` beside
    another prompt field are kept as `source_messages`.

    Rejected: rows that are malformed, have no prompt, no usable answer, a task_id seen before, or more than
    `max_prompt_tokens` by `count_tokens` (given all turns, without the template: leave room for it). They are written to the
    JSONL file `rejects` if given; `.attrs["rejects"]` holds the first 1,000, {"line", "kind", "reason", "excerpt"}. Kept and
    counted: rows whose whole prompt an earlier row had (`.attrs["duplicate_prompts"]`), and rows that `overlap` with
    `eval_prompts`, marked in the column `overlaps_eval`. One warning names both; `ingestion_report` lists every count.
    Raises FileNotFoundError, or ValueError for a source without rows, damaged, over `max_unpacked_bytes` of gzip, or with
    a larger share of bad rows than `max_bad_share`.
    """
    if (count_tokens is None) != (max_prompt_tokens is None):
        raise ValueError("load_tasks: found one of count_tokens and max_prompt_tokens, expected both or neither")
    origin, rows, lines, rejected = parse_source(source), [], [], []
    for line, row in _tasks(read_records(origin, max_unpacked_bytes=max_unpacked_bytes), stem(origin)):
        if isinstance(row, dict) and count_tokens and (found := count_tokens(prompt_text(row))) > max_prompt_tokens:
            reason = f"prompt: found {found} tokens, expected at most {max_prompt_tokens} (max_prompt_tokens)"
            row = RowError("long prompt", reason, short(row["prompt"]))
        if isinstance(row, RowError):
            rejected.append({"line": line, "kind": row.kind, "reason": str(row), "excerpt": row.excerpt})
        else:
            rows.append(row)
            lines.append(line)
    if rejects is not None:
        write_text(Path(rejects), "".join(json.dumps(reject) + "\n" for reject in rejected))
    total = len(rows) + len(rejected)
    if total == 0:
        raise ValueError(f"{origin}: found no rows, expected at least one task")
    if len(rejected) > max_bad_share * total or not rows:
        first = "; ".join(f"line {reject['line']}: {reject['reason']}" for reject in rejected[:3])
        raise ValueError(
            f"{origin}: found {len(rejected)} bad rows of {total}, expected at most {max_bad_share:.0%}; first: {first}"
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{origin}: found {len(names)} different fields, expected at most {MOST_COLUMNS}")
    table = pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in names})
    table = table.astype({"task_id": "str", "prompt": "str", "answer": "str"})
    texts = [prompt_text(row) for row in rows]
    kept = {REPEATED: pd.Series(texts, dtype=object).duplicated().tolist()}
    if eval_prompts is not None:
        kept["prompt in the evaluation set"] = table["overlaps_eval"] = overlap(texts, eval_prompts)
    kept[CHATS] = ["messages" in row for row in rows]
    always = ALWAYS_CHECKED if count_tokens is None else (*ALWAYS_CHECKED, "long prompt")
    table.attrs = {"source": str(origin), "rows": total, "rejects": rejected[:LISTED]}
    table.attrs |= {"report": _report(lines, kept, rejected, always), "duplicate_prompts": sum(kept[REPEATED])}
    _warn(table, len(rejected))
    return table


def ingestion_report(table: pd.DataFrame) -> pd.DataFrame:
    """What `load_tasks` found, from its table's `attrs`: kind, rows, outcome (rejected or kept) and up to five first lines.

    Kinds that were looked for and not found have 0 rows; a check that was not asked for is absent.
    """
    if "report" not in table.attrs:
        raise ValueError("ingestion_report: found no attrs['report'], expected a table as `load_tasks` returns it")
    report = pd.DataFrame(table.attrs["report"])
    report["lines"] = [", ".join(map(str, lines)) for lines in report["lines"]]
    return report.rename(columns={"lines": "first_lines"})


def write_like(
    table: pd.DataFrame,
    source: str | os.PathLike,
    path: str | os.PathLike,
    *,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
) -> Path:
    """Write the rows of `source` whose tasks are in `table` (by task_id) to `path`, in the format that came in; gives `path`.

    All original fields are written, in the order of `source`: JSONL and CSV rows and array elements with their own bytes,
    Parquet with its schema, gzip as gzip, a folder as a `save_to_disk` folder, a hub dataset as Parquet. Atomic. Where the
    source has no task_id, loading the export numbers its rows anew. Raises ValueError if `table` is empty, repeats a task, has
    one that `source` has not, or another prompt or answer for it: this is a filter, and an edit would be lost.
    """
    wanted = table.set_index(table["task_id"].map(str))
    if not len(wanted) or not wanted.index.is_unique:
        found = f"{wanted.index[wanted.index.duplicated()][0]!r} twice" if len(wanted) else "no rows"
        raise ValueError(f"write_like: found {found} in the table, expected one or more different tasks")
    fields = {name: dict(zip(wanted.index, wanted[name])) for name in ("prompt", "answer") if name in wanted}
    origin, kept, lines = parse_source(source), set(wanted.index), {}
    for line, row in _tasks(read_records(origin, max_unpacked_bytes=max_unpacked_bytes), stem(origin)):
        if isinstance(row, dict) and row["task_id"] in kept:
            for name, values in fields.items():
                if values[row["task_id"]] != row[name]:
                    found = f"{short(values[row['task_id']])} as {name} of {row['task_id']!r} in the table"
                    raise ValueError(f"{origin}: found {found}, expected {short(row[name])} as in line {line}")
            lines[row["task_id"]] = line
    if missing := [name for name in wanted.index if name not in lines]:
        raise ValueError(f"{origin}: found no task {missing[0]!r} ({len(missing)} missing), expected every one of the table")
    return write_records(origin, Path(path), set(lines.values()), max_unpacked_bytes=max_unpacked_bytes)


def fold_prompt(text: str) -> str:
    """Lower case with single spaces: what two prompts share that are one task. Symbols stay, for 3 + 4 is not 3 - 4."""
    return " ".join(text.lower().split())


def normalise_prompt(text: str) -> str:
    """Lower-case letters and digits only, so that case, spacing and punctuation do not hide a repeated prompt."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).lower())


def _normalised(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ValueError(f"overlap: found one text {short(texts)}, expected a list of prompts")
    texts = list(texts)
    if others := [text for text in texts if not isinstance(text, str)]:
        raise ValueError(f"overlap: found the prompt {short(others[0])}, expected text")
    return [normalise_prompt(text) for text in texts]


def _window_index(patterns: set[str]) -> dict[str, set[tuple[int, int]]]:
    """{window: {(its offset in a pattern, the pattern's length)}}, each pattern by the rarest of `PROBES` windows of it.

    So an instruction that opens or closes thousands of prompts is no pattern's window.
    """

    def windows(text: str) -> dict[str, int]:
        last = len(text) - SHORTEST_CONTAINED
        return {
            text[start : start + SHORTEST_CONTAINED]: start
            for start in {last * probe // (PROBES - 1) for probe in range(PROBES)}
        }

    frequency, index = Counter(window for text in patterns for window in windows(text)), {}
    for text in patterns:
        window, offset = min(windows(text).items(), key=lambda item: (frequency[item[0]], item[1]))
        index.setdefault(window, set()).add((offset, len(text)))
    return index


def _contained(text: str, index: dict, patterns: set[str]) -> Iterator[str]:
    """The patterns that stand inside `text`: one look-up a position, and a comparison where a window is found."""
    width = SHORTEST_CONTAINED
    for place in [place for place in range(len(text) - width + 1) if text[place : place + width] in index]:
        for offset, length in index[text[place : place + width]]:
            piece = text[place - offset : place - offset + length]
            if piece in patterns:
                yield piece


def overlap(prompts: Iterable[str], reference_prompts: Iterable[str]) -> list[bool]:
    """For each prompt, whether it and a reference prompt are equal after normalising, or one stands inside the other.

    Containment (a few-shot header, a question with an instruction around it) counts from 40 normalised characters on. Time
    grows with the number of characters, not with prompts times references.
    """
    ours, theirs = _normalised(prompts), _normalised(reference_prompts)
    known = set(theirs) - {""}
    long_known, long_ours = (
        {text for text in texts if len(text) >= SHORTEST_CONTAINED} for texts in (known, set(ours) - known)
    )
    of_ours, of_known = _window_index(long_ours), _window_index(long_known)
    flagged = known.union(*(_contained(text, of_ours, long_ours) for text in long_known))
    flagged |= {text for text in long_ours - flagged if any(True for _ in _contained(text, of_known, long_known))}
    return [text in flagged for text in ours]
