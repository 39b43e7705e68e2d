"""How fast and how right the answer checker is: GSM8K completions, all GSM8K golds, a million hostile strings.

    python benchmarks/verifier.py [number of fuzz strings, by default 1000000]

* Throughput: completions made from the solutions of GSM8K train (four ways to state the answer, right and wrong, no two alike),
  checked one by one on one core against the gold as the task loader hands it over; `math_verify` with its own defaults on a
  sample of the same data, with every kind of disagreement. Rates are per minute of CPU time. "wrong" counts verdicts unlike
  what the completion was built to state: three solutions say "the answer is" before the last number, and that counts first.
* Golds: every gold in six notations against itself and against six wrong golds.
* Fuzz: strings built so that they state another number than the gold or none (never to be accepted), or the gold (to be
  accepted); noise; long runs of whatever makes a regular expression backtrack. The slowest call is in CPU milliseconds.
* LaTeX: the same for answers that need the math worker (wall clock), and expressions meant to exhaust it.

GSM8K is read from ../shared/data/gsm8k beside the repository.
"""

import gc
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from lad_utils.math_worker import WORKER
from lad_utils.verifier import gold_answer, verify, verify_strict

DATA = Path(__file__).resolve().parents[1] / "../shared/data/gsm8k"
SAMPLE = 500  # completions a kind for math_verify
LATEX_STRINGS = 2_000
SIZES = (10_000, 100_000, 1_000_000)
ENDINGS = {
    "#### 18": "\n#### {}",
    "The answer is 18.": "\nThe answer is {}.",
    "\\boxed{18}": "\nSo the result is $\\boxed{{{}}}$.",
    "last number": "\nThat makes {} in total.",
}
# Texts that hold the digits of the gold G, and perhaps another number N, without stating it.
NONE_STATED = """G-GN|N to G|G or N|N or G|Gx|G^2|2^G|G million|G:30|N:G|N.G.N|G + N|N + G|N * G|NxG|AG|G/G3|1,000,Gx|not G|G²
G½|Ge2
Gk|x > G|(N, G)|G% of N|less than G|between N and G|N'G|N_G|G hours and N minutes|\\sqrt{G}|√G|\\frac{1}{G}
N ≈ G|±G|G‰|no number|?|unknown|x|$|%"""
UNITS = """9|9 |answer: |answer is |answer is 5 |1,|1,000,| |{|}|#|####|#### |\\boxed{|\\boxed{1}|\\boxed{}
-|- |$|\\|\\frac{|\\frac{1}{2}
\\text{|<<|<<9>>|**|=|1/|1 / |1^|1.|e|9e9 |a |x_1 |^{|!|%|$5$|\\(|(5|)|\\,|9\\,|or |5 feet |\xa0|√|²|—|5 or |5 to |(5, |x > """
NOISE = ["01234568 .,-+/$%=#:;()xae\n", "#### \\boxed{}answer is:015,.-", "\\{}$^_frac1234568 ", "é²½−–—… \u20090123\n"]
# LaTeX with its value; A and B are numbers, S is A squared.
LATEX = {
    r"\sqrt{S}": lambda a, b: a,
    r"A \cdot B": lambda a, b: a * b,
    r"\frac{S}{A} + B": lambda a, b: a + b,
    r"B^{3}": lambda a, b: b**3,
    r"B\sqrt{S}": lambda a, b: a * b,
    r"\left(A + B\right) \times 2": lambda a, b: 2 * (a + b),
    r"\binom{B}{2}": lambda a, b: b * (b - 1) // 2,
    r"x = -\sqrt{S}": lambda a, b: -a,
    r"\log_{A} S": lambda a, b: 2,
}
BOMBS = [
    r"9^{9^{9^{9}}}",
    r"9^{99^{2}+9999}\sqrt{2}",
    r"(9^{9999})^{9999}",
    r"(x+y+z)^{9999}",
    r"1000!^{1000}!",
    r"\sum_{i=1}^{10^{9}} \sin i",
]
BOMBS += [r"\binom{10^{9}}{10^{8}}", r"\prod_{i=1}^{10^{9}} i", r"\int_0^1 x^{x^{x}} dx", r"\sqrt{" * 60 + "2" + "}" * 60]
BOMBS += [r"\frac{1}{" * 90 + "2" + "}" * 90, "+".join(f"\\sqrt{{{i}}}" for i in range(2, 100)), "(" * 300 + "5" + ")" * 300]


def solutions(split: str) -> list[tuple[str, str]]:
    """(solution without its last line, gold) of each row."""
    with open(DATA / f"{split}.jsonl", encoding="utf-8") as lines:
        answers = [json.loads(line)["answer"] for line in lines]
    return [(text.rsplit("\n#### ", 1)[0], gold_answer(text)) for text in answers]


def neighbours(gold: str, rng: random.Random) -> list[str]:
    """Numbers that a careless checker takes for the whole number `gold`; none is equal to it."""
    number, digits = int(gold), gold.lstrip("-")
    wrong = [
        number + 1,
        number - 1,
        -number,
        f"{gold}{rng.randint(0, 9)}",
        f"{rng.randint(1, 9)}{digits}",
        digits[1:],
        gold[:-1],
    ]
    wrong += [f"{gold}.5", number + 10 ** rng.randint(1, 3), f"{number / 7:.2f}", number * 100]
    return [str(w) for w in wrong if str(w).strip("-") and float(w) != number] + ([f"{gold}/3"] if number else [])


def throughput(rows: list, rng: random.Random) -> None:
    from math_verify import parse
    from math_verify import verify as compare

    print(f"{'GSM8K train':20}{'n':>7}{'a minute':>11}{'wrong':>7} | math_verify: n{'a minute':>10}{'ratio':>7}{'agree':>8}")
    total, spent, disagreements = 0, 0.0, {}
    for kind, ending in ENDINGS.items():
        made = []  # each solution once right and once wrong, half without the calculator annotations
        for body, gold in rows:
            for right in (True, False):
                text = body if rng.random() < 0.5 else re.sub(r"<<[^<>]*>>", "", body)
                made.append((text + ending.format(gold if right else rng.choice(neighbours(gold, rng)[:3])), gold, right))
        started = time.process_time()
        verdicts = [verify(text, gold) for text, gold, _ in made]
        seconds = time.process_time() - started
        total, spent = total + len(made), spent + seconds
        wrong = sum(verdict != right for verdict, (_, _, right) in zip(verdicts, made))
        sample = rng.sample(range(len(made)), SAMPLE)
        started = time.process_time()
        theirs = [bool(compare(parse(made[i][1]), parse(made[i][0]))) for i in sample]
        peer = (time.process_time() - started) / SAMPLE
        differing = [i for i, their in zip(sample, theirs) if verdicts[i] != their]
        for i in differing:
            case = f"{kind}, built {'right' if made[i][2] else 'wrong'}, ours {verdicts[i]}, math_verify {not verdicts[i]}"
            disagreements.setdefault(case, []).append((made[i][0][-60:], made[i][1]))
        row = f"{kind:20}{len(made):7}{60 * len(made) / seconds:11,.0f}{wrong:7} | {SAMPLE:14}{60 / peer:10,.0f}"
        print(f"{row}{peer * len(made) / seconds:7.1f}{1 - len(differing) / SAMPLE:8.1%}")
    print(f"{'all':20}{total:7}{60 * total / spent:11,.0f}")
    for case, examples in disagreements.items():
        print(f"  {len(examples)} x {case}; as {examples[0]}")


def golds() -> None:
    rejected, accepted, checked = Counter(), 0, 0
    for body, gold in solutions("train") + solutions("test"):
        number = int(gold)
        dollars = f"-${-number:,}.00" if number < 0 else f"${number:,}.00"
        forms = {
            "full text": f"{body}\n#### {number:,}",
            "bare": gold,
            "box": f"\\boxed{{{gold}}}",
            "phrase": f"The answer is {gold}.",
        }
        forms |= {"commas": f"#### {number:,}", "dollars": f"The answer is {dollars}"}
        wrong = {number + 1, number - 1, -number, int(f"{gold}7"), number + 7 * 10 ** len(gold), number // 10} - {number}
        for form, text in forms.items():
            rejected[form] += not verify(text, gold)
            checked += len(wrong)
            accepted += sum(verify(text, other) for other in wrong)
    print(f"golds: false rejects {dict(rejected)}; false accepts {accepted} of {checked:,}")


def styled(number: str, rng: random.Random) -> str:
    """The same number in another notation."""
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    styles = [number, f"{number}%", f"{number} apples", f"**{number}**", f"{sign}${digits}", f"{sign}00{digits}"]
    if "/" in digits or digits.startswith("."):
        return rng.choice(styles[:4])
    whole, point, decimals = digits.partition(".")
    commas = f"{int(whole):,}{point}{decimals}"
    return rng.choice([*styles, f"{sign}{commas}", f"{number}0" if point else f"{number}.00", f"{sign}${commas}"])


def fuzzed(rows: list, rng: random.Random) -> tuple[str, str, bool]:
    """(string, gold, whether it states the gold); in eight of ten the gold also stands where it does not count."""
    body, gold = rng.choice(rows)
    if int(gold) < 2 or rng.random() < 0.5:
        gold = str(rng.choice([rng.randint(2, 99), rng.randint(100, 10**6), rng.randint(10**6, 10**9)]))
    kind, way, lead = rng.randrange(10), rng.randrange(4), body[: rng.randint(0, len(body))].replace("answer", "result")
    if kind == 0:  # no alphabet has a 7, and the gold has one
        size = min(10_000, int(rng.paretovariate(0.7) * 20))
        return "".join(rng.choices(rng.choice(NOISE), k=size)), f"7{rng.randint(10**5, 10**6)}1", False
    if kind > 7:
        template = rng.choice(re.split(r"[|\n]", NONE_STATED))
        statement, right = template.replace("G", gold).replace("N", str(rng.randint(2, 99))), False
        lead = "" if way == 3 else lead  # or the last number of the lead would count
    else:
        right = kind < 4
        statement = styled(gold if right else rng.choice(neighbours(gold, rng)), rng)
        lead += rng.choice(["\n", f" It is not {gold}.\n", f" I first had {gold}.\n"])
    if way == 0:
        return lead + f"#### {statement}" + rng.choice(["", f"\n\nQuestion: {gold}?\n#### {gold}"]), gold, right
    if way == 1:
        boxed = statement.replace("**", "").replace("%", "\\%").replace("$", "\\$")
        return lead + f"\\boxed{{{gold}}} or rather \\boxed{{{boxed}}}, not {gold}", gold, right
    if way == 2:
        return (
            lead + f"the answer is {gold}. No, the answer is {statement}" + rng.choice(["", f".\nIt was {gold}."]),
            gold,
            right,
        )
    return lead + f"so it is {statement}", gold, right


def latex_case(rng: random.Random) -> tuple[str, str, bool]:
    a, b, right = rng.randint(2, 30), rng.randint(2, 12), rng.random() < 0.4
    template, value_of = rng.choice(list(LATEX.items()))
    text, value = template.replace("A", str(a)).replace("B", str(b)).replace("S", str(a * a)), value_of(a, b)
    wrong = [value + 1, -value, value * 10, f"{value}.5", f"\\frac{{1}}{{{abs(value) + 1}}}", f"\\sqrt{{{value * value + 1}}}"]
    return f"Hence \\boxed{{{text}}}.", str(value if right else rng.choice(wrong)), right


def timed(check: Callable[[str, str], bool], text: str) -> float:
    """CPU milliseconds of a call whose gold is never right."""
    before = time.process_time()
    check(text, "987654321")
    return 1000 * (time.process_time() - before)


def report(name: str, cases: Iterable[tuple[str, str, bool]], *, numeric: bool = False) -> None:
    """Crashes, false accepts, false rejects and the slowest call over (string, gold, whether it states the gold)."""
    clock = time.process_time if numeric else time.monotonic  # the math worker's time is not this process's
    n, failures, slowest = 0, {"crash": [], "false accept": [], "false reject": []}, (0.0, "")
    started = clock()
    for text, gold, right in cases:
        n += 1
        before = clock()
        try:
            verdict = verify(text, gold)
        except Exception:
            verdict = None
        milliseconds = 1000 * (clock() - before)
        if milliseconds > slowest[0]:  # again, since a busy machine inflates a call now and then
            slowest = max(slowest, (min(milliseconds, timed(verify, text)) if numeric else milliseconds, text))
        if verdict != right:
            failures["crash" if verdict is None else "false accept" if verdict else "false reject"].append((text[-90:], gold))
    counts = ", ".join(f"{failure} {len(found)}" for failure, found in failures.items())
    print(f"{name}: {n:,} strings in {clock() - started:.0f} s; {counts}; slowest {slowest[0]:.1f} ms, {slowest[1][-50:]!r}")
    for failure, found in failures.items():
        if found:
            print(f"  {failure}: {found[:8]}")


def hostile() -> None:
    """Slowest call on runs of one unit: ten times the length may take ten times as long, not a hundred times."""
    for size in SIZES:
        slowest = (0.0, "", "")
        for unit in [*re.split(r"[|\n]", UNITS), "\n", " \t", "5\n"]:
            for lead in ("", "5 ", "#### ", "#### 5 ", "The answer is ", "\\boxed{5 "):
                for tail in ("", " x", "}", " 6", "\n\\boxed{6}"):
                    text = lead + unit * (size // len(unit)) + tail
                    for check in (verify, verify_strict):
                        milliseconds = min(timed(check, text), timed(check, text))  # a busy machine inflates one of them
                        slowest = max(slowest, (milliseconds, lead + unit, tail))
        print(
            f"hostile, {size:9,} characters: slowest call {slowest[0]:6.1f} ms, {slowest[1]!r} and so on, then {slowest[2]!r}"
        )


def main() -> None:
    strings = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rng = random.Random(0)
    rows = solutions("train")
    throughput(rows, rng)
    golds()
    gc.freeze()  # so that no pause of the collector counts as a slow call
    report("fuzz, numbers", (fuzzed(rows, rng) for _ in range(strings)), numeric=True)
    hostile()
    report("fuzz, LaTeX", (latex_case(rng) for _ in range(LATEX_STRINGS)))
    print(f"  math worker started {WORKER.starts} times")
    starts = WORKER.starts
    report("bombs in the completion", ((f"\\boxed{{{bomb}}}", "18", False) for bomb in BOMBS))
    report("bombs in the gold", (("\\boxed{\\sqrt{18}}", bomb, False) for bomb in BOMBS))
    print(f"  math worker restarted {WORKER.starts - starts} times")


if __name__ == "__main__":
    main()
