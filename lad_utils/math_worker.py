"""Whether two LaTeX texts are the same mathematics: `math-verify` in a process of its own, under limits of time and memory."""

import functools
import re

from lad_utils.limited_worker import LimitedWorker, answer_lines, limit_memory

# Powers of powers and huge exponents or factorials are refused at once, before the process spends its time limit on them.
TOWER = re.compile(r"\^[\s{(]*[0-9.]+[\s)}]*\^|\^[\s{(]*[0-9]{5}|[0-9]{5}\s*!|![\s)}]*!")
# What math-verify drops or reads as a list, so that "about 5", "5 or 6" and "5x" would pass for 5.
VAGUE = re.compile(r"\\(?:approx|sim|simeq|cong|l?dots|cdots|neq?|in|phantom)\b|[≈~'′]|\.\.\.|\b(?:or|and)\b")
UNREAD = re.compile(r"\\(?:text|math(?:rm|it|sf|tt)|mbox|operatorname)")  # nested, or it would have been made plain
BASE = re.compile(r"(?<=[0-9])\s?_\s?\{?\s?([0-9]+)")  # `25_8` is not 25, but the subscript is dropped
# `4 5` and `4{5}` look like one number, but are read as 9 and 20; `\frac 1 2` and `\log_2 16` are innocent.
SPLIT = re.compile(r"(?<![\w^.])(?<!frac )(?<!binom )[0-9][0-9.,]*\s+[0-9]+(?!\s*/|[0-9])|(?<![\w^])[0-9]+\s*\{\s*[0-9]")
NOTATION = [
    (re.compile(r"√\s?(?:([0-9]+)|\(([^()]*)\))"), r"\\sqrt{\1\2}"),
    (re.compile("π"), r"\\pi "),
    # `2\frac{1}{2}\pi` is 5/2 of it, not 1 of it
    (re.compile(r"(?<![\w^.{}])([0-9]+)\s?(\\[dt]?frac\s?\{\s?[0-9]+\s?\}\s?\{\s?[0-9]+\s?\})"), r"(\1+\2)"),
]

WORKER = LimitedWorker("lad_utils.math_worker")


def same_mathematics(stated: str, gold: str) -> bool:
    """True if two texts in LaTeX's mathematical notation are equal as numbers or expressions (12 decimals where irrational)."""
    for pattern, replacement in NOTATION:
        stated, gold = pattern.sub(replacement, stated), pattern.sub(replacement, gold)
    endless = TOWER.search(stated) or TOWER.search(gold)
    vague = VAGUE.search(stated) and not VAGUE.search(gold)
    misread = UNREAD.search(stated) or SPLIT.search(stated) or BASE.findall(stated) != BASE.findall(gold)
    if endless or vague or misread or stated.count("{") != stated.count("}"):
        return False
    return WORKER.ask(stated, gold)


def _serve() -> None:
    limit_memory()
    from math_verify import LatexExtractionConfig, parse, verify

    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    read = functools.partial(parse, extraction_config=latex, fallback_mode="no_fallback", parsing_timeout=None)
    verify(read(r"$\frac{1}{2}$"), read("$0.5x$"))  # pays the first call's set-up before the clock runs

    def same(stated: str, gold: str) -> bool:
        stated, gold = read(f"${stated}$"), read(f"${gold}$")
        return bool(stated and gold and verify(gold, stated, float_rounding=12, timeout_seconds=None))

    answer_lines(same)


if __name__ == "__main__":
    _serve()
