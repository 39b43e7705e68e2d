r"""The one answer checker used by rollouts, reward and evaluation.

    >>> verify("12 + 7 = 19 ; 19 * 3 = 57 ; #### 57", "57")
    True

Extraction order, fixed because sources disagree: with `####`, the first marker counts (what follows in a run-on is another
question); without it the last balanced `\boxed{}`, then the last "answer is / answer:" phrase, then the last number.
Numbers are compared exactly, as fractions; a bare percent "25%" is 25, never 1/4. Other LaTeX goes to `math-verify` in a
separate process under a wall-clock and a memory limit, since a policy may write anything: timeouts and crashes are False.
"""

import atexit
import contextlib
import functools
import json
import numbers
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

WORKER_CPU_SECONDS = 3  # the usual limit: unlike wall-clock time it gives the same verdict on a loaded machine
WORKER_SECONDS = 10.0  # wall clock
WORKER_BYTES = 2**30
LONGEST_NUMBER = 400  # digits, and the largest exponent; bounds the integer arithmetic
LONGEST_ANSWER = 1000  # characters after the marker, in the box or after the phrase

MARKER = re.compile(r"####+[ \t\r]*\n?")
BOX_EVENTS = re.compile(r"\\boxed\s?\{|\\[{}\\]|[{}]")
PHRASE = re.compile(r"\banswer\b[*_]{0,3}[ \t]{0,9}(?:is\b|:)[\s:*_]*(?=\S)", re.IGNORECASE)
# Digits joined by . , / : ^ are one token, so 3/4, 3:30, 1.2.3 and 1.234,00 never yield a part of themselves. A minus after a
# digit, letter or bracket subtracts (5-3, 15-20, COVID-19); a spaced one negates only at the start or after '='.
NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z)\]}%$.])[-−–]|(?:^|(?<==[ ]))[-−–][ ])?(?:[$€£¥](?P<sign_after_currency>[-−])?)?"
    r"(?<![A-Za-z0-9_^{√\\])(?:(?P<whole>[0-9]{1,9})[ ](?=[0-9]+/[0-9]+(?![/0-9])))?"
    r"(?P<body>(?:(?<![0-9A-Za-z.])\.)?[0-9](?:[0-9]|[.,/:^](?=[0-9]))*)(?:[eE](?P<exponent>[+-]?[0-9]+)(?![A-Za-z0-9.]))?"
)
DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+|(?=\.))(?:\.[0-9]+)?"
RATIONAL = re.compile(rf"({DECIMAL})(?:/({DECIMAL}))?")
SCALES = "hundred|thousand|million|billion|trillion"
FUNCTIONS = f"pi|sin|cos|tan|log|ln|exp|sqrt|mod|max|min|or|and|to|not|if|plus|minus|times|divided|over|squared|cubed|{SCALES}"
GLUED = r"(?:st|nd|rd|th|kg|mg|cm|mm|km|ml|mL|lb|lbs|oz|ft|hr|am|pm)(?![A-Za-z])|(?!xyz|abc|pi|sqrt)[A-Za-z]{3}"
UNIT = rf"(?!(?:{FUNCTIONS})\b)(?:[A-Za-z]{{2,}}|[mghsLlW]\b)"
# What may follow a number that fills a whole answer: percent, currency, a unit (`square feet`, `cm^2`, `miles/hour`).
WHOLE_TAIL = re.compile(rf"\s*[%$€£]*(?:(?:\s+|(?={GLUED})){UNIT}(?:[ /-]{UNIT}){{0,5}}(?:\^\{{?[23]\}}?)?)?[\s.,;?$]*")
# What shows that a number only starts an expression, a list, a hedge (`5 or 6`) or a compound (`5 hours and 30 minutes`).
CONTINUES = re.compile(
    r"[%$]?(?:\s*\^|\s*\\|[({_√]|\s*[-−–+*/×÷·±<>≤≥≠≈~=:|!]+\s*[$({\\]*(?:[-−.]?[0-9]|[A-Za-z](?![A-Za-z]))"
    r"|\s*(?:,\s*|&\s*|,?\s*\b(?:and|or|to|vs|versus)\b\s*)?[$]?[-−]?\.?[0-9]"
    rf"|\s*(?:{FUNCTIONS})\b(?!\s+[a-z])|\s*(?:or|{SCALES})\b"
    rf"|(?=[A-Za-z])(?!{GLUED})|\s+(?![mghsLlWaAI])[A-Za-z](?![A-Za-z'])"
    r"|\s+(?:hours?|minutes?|feet|foot|ft|dollars?|pounds?|lbs?|years?|months?|weeks?|days?|remainder)[ ,]+(?:and )?[$]?[0-9])"
)
CLEANERS = {  # pattern: replacement, in this order
    r"<<[^<>]*>>": "",  # calculator annotations of GSM8K
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s?\{([^{}]*)\}": r" \1 ",
    r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)(?![A-Za-z])|\\(?:left|right|displaystyle)(?![A-Za-z])|\\!": "",
    r"\{,\}|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))": ",",
    r"\\([%$#&])": r"\1",
    r"\\[()\[\],;: \\]": " ",
    r"\\[dt]?frac\s?(?:\{ ?(-?[0-9.]+) ?\} ?\{ ?([0-9.]+) ?\}|([0-9])([0-9]))(?!\s?[0-9\\({^])": r"<\1\3/\2\4>",
    r"(?<=[0-9])\s?<([0-9.]+/[0-9.]+)>": r" \1",  # mixed: 2\frac{1}{2}
    r"(?<![-−0-9])<(-?[0-9.]+/[0-9.]+)>|<([0-9.]+/[0-9.]+)>": r"\1\2",
}
NULL_GOLDS = {"", "n/a", "na", "nan", "none", "null", "tbd", "?", "-"}
LATEX = re.compile(r"[\\^{}_√π]")
# Powers of powers and huge exponents or factorials are rejected at once, before the worker spends its time limit on them.
TOWER = re.compile(r"\^[\s{(]*[0-9A-Za-z.]+[\s)}]*\^|\^[\s{(]*[0-9]{5}|[0-9]{5}\s*!|![\s)}]*!")
VAGUE = re.compile(r"\\(?:approx|sim|simeq|cong|l?dots|cdots|neq?|in|text\s?\{\s?or)\b|[≈~]|\.\.\.")


def completion_text(completion) -> str:
    """Text of a completion: a str, None (empty) or chat messages, of which the last assistant turn counts; else TypeError."""
    messages = [completion] if isinstance(completion, dict) else completion
    if isinstance(messages, (list, tuple)) and all(isinstance(message, dict) for message in messages):
        contents = [message.get("content") for message in messages if message.get("role", "assistant") == "assistant"]
        completion = contents[-1] if contents else None
    if completion is None or isinstance(completion, str):
        return completion or ""
    raise TypeError(f"completion: found {type(completion).__name__} {repr(completion)[:80]}, expected a str or chat messages")


def _clean(text: str) -> str:
    """Text with simple LaTeX and markdown written plainly: `\\dfrac{1}{2}` is 1/2, `5\\text{ cm}` is 5 cm, `**5**` is 5."""
    if "\\" in text or "{" in text or "<<" in text:
        for pattern, replacement in CLEANERS.items():
            text = re.sub(pattern, replacement, text)
    return text.replace("**", "").replace("°", "")


def _number(match: re.Match | None, text: str, *, whole: bool) -> tuple[str, Fraction] | None:
    """Literal and value; None if malformed (3:30, 1/0) or if more than a unit (`whole`) or mathematics follows in `text`."""
    parts = RATIONAL.fullmatch(match["body"]) if match is not None and len(match["body"]) <= LONGEST_NUMBER else None
    if parts is None or not (WHOLE_TAIL.fullmatch(text, match.end()) if whole else not CONTINUES.match(text, match.end())):
        return None
    numerator, denominator = parts[1].replace(",", ""), (parts[2] or "1").replace(",", "")
    exponent, signs = match["exponent"] or "0", (match["sign"], match["sign_after_currency"])
    if len(exponent) > 5 or abs(int(exponent)) > LONGEST_NUMBER or not Fraction(denominator) or all(signs):
        return None
    value = Fraction(numerator) / Fraction(denominator) * Fraction(10) ** int(exponent) + int(match["whole"] or 0)
    literal = numerator if parts[2] is None and match["exponent"] is None else str(value)
    return (f"-{literal}", -value) if any(signs) else (literal, value)


def _leading_number(text: str, *, whole: bool) -> tuple[str, Fraction] | None:
    text = re.sub(r"(?<=[0-9])\s?/\s?(?=[0-9])", "/", _clean(text)).strip(" \t\r\n*_\"'")
    text = re.sub(r"^\(([^()]*)\)(?=\W*$)|^\$\s+|^\+(?=[0-9])", r"\1", text)
    return _number(NUMBER.match(text), text, whole=whole)


def _last_number(text: str) -> str | None:
    text = _clean(text)
    found = _number(([None, *NUMBER.finditer(text)])[-1], text, whole=False)
    return None if found is None else found[0]


def parse_number(text: str) -> Fraction | None:
    """Exact value of a text that is one number (with currency, percent, commas, unit), else None. Never rounds."""
    found = _leading_number(text, whole=True) if len(text) <= LONGEST_ANSWER else None
    return None if found is None else found[1]


def _answer(segment: str, *, whole: bool = False, prose: bool = False) -> str | None:
    """Answer stated by the text of a marker, a box (`whole`) or a phrase (`prose`: the number may stand inside a sentence)."""
    if whole and len(segment) > LONGEST_ANSWER:
        return None
    segment = segment[:LONGEST_ANSWER].strip().strip("*_`").strip()
    # `12 + 7 = 19` and `x = 19` state 19; `x = 5, y = 7` and `y + 3x = 0` state no single value.
    left, _, right = segment.rpartition("=")
    variable = re.fullmatch(r"\W*[A-Za-z](?:_\w|\(\w\))?\s*", left)
    other = re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|,(?![0-9]{3})|\\(?:[tq]|be|ne)|[<>!]$|\b(?:and|or)\b", left)
    stated = right.strip() if right.strip() and (variable or not other) else segment
    if found := _leading_number(segment, whole=whole) or _leading_number(stated, whole=whole):
        return found[0]
    formula = None if whole else re.search(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", segment)
    if formula is not None:
        return _answer(next(filter(None, formula.groups())), whole=True)
    if prose and not LATEX.search(segment) and re.match(r"[^0-9]*?[A-Za-z]{2}", segment):
        return _last_number(segment) or segment.rstrip(". ")
    return stated.rstrip(". ") or None


def _last_box(text: str) -> str | None:
    """Content of the last balanced `\\boxed{}`; one pass, so a thousand unclosed boxes cost no more than their length."""
    open_braces, best = [], None
    for event in BOX_EVENTS.finditer(text):
        if event[0] == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and (best is None or start > best[0]):
                best = (start, event.start())
        elif event[0] == "{" or event[0].startswith("\\boxed"):
            open_braces.append(None if event[0] == "{" else event.end())
    return None if best is None else text[best[0] : best[1]]


def extract_strict(completion) -> str | None:
    """Answer after the first `####`, else in the last balanced `\\boxed{}`, else None."""
    text = completion_text(completion)
    marker = MARKER.search(text)
    if marker is not None:
        text = re.split(r"\n|(?<!\\);|####", text[marker.end() : marker.end() + LONGEST_ANSWER], maxsplit=1)[0]
    box = _last_box(text) if "\\boxed" in text else None
    if box is not None or marker is None:
        return None if box is None else _answer(box, whole=True)
    phrase = PHRASE.search(text)
    return _answer(text[phrase.end() if phrase else 0 :])


def extract(completion) -> str | None:
    """The stated answer without commas, currency and unit (`The answer is $1,234.` gives `1234`), or None."""
    text = completion_text(completion)
    if "####" in text or ("\\boxed" in text and _last_box(text) is not None):
        return extract_strict(text)
    phrases = list(PHRASE.finditer(text))
    return _answer(text[phrases[-1].end() :].split("\n", 1)[0], prose=True) if phrases else _last_number(text)


def gold_answer(text) -> str | None:
    """Final answer of a gold column (`...#### 18` gives `18`, 5.0 gives `5`); None if unusable: `see figure 3` is not 3."""
    if not isinstance(text, (str, numbers.Real)) or isinstance(text, bool) or str(text).strip().lower() in NULL_GOLDS:
        return None
    text = str(int(text)) if isinstance(text, float) and text.is_integer() else str(text).strip()
    phrases = list(PHRASE.finditer(text))
    if "####" in text or "\\boxed" in text:
        answer = extract_strict(text)
    elif phrases:
        answer = _answer(text[phrases[-1].end() :].split("\n", 1)[0])
    else:
        answer = _answer(text.strip("$ ") if text.count("$") == 2 else text, whole=True)
    if answer is None or parse_number(answer) is not None:
        return answer
    bare = re.sub(r"\\(?:text|mathrm|mbox|begin|end)\s?\{[^{}]*\}|\\[A-Za-z]+", " 1 ", answer)
    # One or two glued letters (xy, AB) are variables; longer words are prose, unless they name a function.
    prose = re.search(rf"\b(?!(?:{FUNCTIONS})\b)(?:[A-Za-z]{{3,}}|no|is|it|in|an|at|as|on|of|by|we|he)\b", bare)
    usable = prose is None and re.search(r"[0-9A-Za-z]", bare) and ("\\" in answer or " or " not in answer)
    return answer if usable and answer.lower() not in NULL_GOLDS else None


@functools.lru_cache(maxsize=65536, typed=True)
def _gold(answer) -> tuple[str, Fraction | None]:
    text = gold_answer(answer)
    if text is None:
        raise ValueError(f"gold answer: found {repr(answer)[:120]}, expected a number, LaTeX or a solution with `#### 18`")
    return text, parse_number(text)


@functools.lru_cache(maxsize=65536, typed=True)
def _agrees(stated: str | None, answer) -> bool:
    gold, gold_value = _gold(answer)
    if stated is None:
        return False
    if gold_value is not None and (value := parse_number(stated)) is not None:
        return value == gold_value
    plain_stated, plain_gold = (re.sub(r"[\s$%]+", " ", _clean(text)).strip(" .") for text in (stated, gold))
    if plain_stated.replace(" ", "") == plain_gold.replace(" ", ""):
        return gold_value is None
    # An unevaluated `12 + 7` is no answer to 19: only LaTeX or a symbolic gold asks for mathematics.
    refused = TOWER.search(stated) or (VAGUE.search(stated) and not VAGUE.search(gold))
    return bool(not refused and (gold_value is None or LATEX.search(stated))) and WORKER.ask(plain_stated, plain_gold)


def verify(completion, answer) -> bool:
    """True if `completion` states `answer` (a str, an int, or a full solution). Raises ValueError for an unusable gold."""
    return _agrees(extract(completion), answer)


def verify_strict(completion, answer) -> bool:
    """As `verify`, but only a `####` marker or a balanced `\\boxed{}` counts."""
    return _agrees(extract_strict(completion), answer)


class _Worker:
    """A `math-verify` process, started at first use: a line of JSON in, a line out, one request at a time from any thread."""

    def __init__(self):
        self.lock, self.process = threading.Lock(), None

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _line(self, seconds: float) -> bytes:
        """One line of the worker, which writes it in one piece; b"" when it died or took longer."""
        poller = select.poll()
        poller.register(self.process.stdout, select.POLLIN)
        return os.read(self.process.stdout.fileno(), 64) if poller.poll(seconds * 1000) else b""

    def ask(self, stated: str, gold: str) -> bool:
        reply = b""
        with self.lock, contextlib.suppress(BrokenPipeError):
            try:
                if self.process is None:
                    command = [sys.executable, "-m", "lad_utils.verifier", "--worker"]
                    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
                    self.process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1], bufsize=0, **pipes)
                    if self._line(60) != b"ready\n":
                        raise RuntimeError("verifier worker: it did not start, expected `ready`; is math-verify installed?")
                self.process.stdin.write(json.dumps([stated, gold]).encode() + b"\n")
                reply = self._line(WORKER_SECONDS)
            finally:
                if not reply:  # also on an interrupt: a late reply must never meet the next request
                    self.stop()
        return reply == b"true\n"


WORKER = _Worker()
atexit.register(WORKER.stop)
os.register_at_fork(after_in_child=WORKER.__init__)  # a forked child must not share pipes or a held lock


def _serve() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_BYTES, WORKER_BYTES))
    from math_verify import LatexExtractionConfig, parse
    from math_verify import verify as sympy_verify

    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    read = functools.partial(parse, extraction_config=latex, fallback_mode="no_fallback", parsing_timeout=None)
    sympy_verify(read(r"$\frac{1}{2}$"), read("$0.5x$"))  # pays the first call's set-up before the clock runs
    os.write(1, b"ready\n")  # one write a line, so that the other side reads whole lines
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, WORKER_CPU_SECONDS)  # SIGPROF kills it, so it dies without its parent, too
        try:
            stated, gold = (read(f"${text}$") for text in json.loads(line))
            agrees = bool(stated and gold and sympy_verify(gold, stated, float_rounding=12, timeout_seconds=None))
        except Exception:
            agrees = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, b"true\n" if agrees else b"false\n")


if __name__ == "__main__" and sys.argv[1:] == ["--worker"]:
    _serve()
