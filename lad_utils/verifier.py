r"""The one answer checker used by rollouts, reward and evaluation.

    >>> verify("12 + 7 = 19 ; 19 * 3 = 57 ; #### 57", "57")
    True

Extraction order, fixed because sources disagree: with `####`, the first marker counts (what follows in a run-on is another
question); without it the last balanced `\boxed{}`, then the last "answer is / answer:" phrase, then the last number.
Numbers are compared exactly, as fractions; a bare percent "25%" is 25, never 1/4. A number that is part of something else
(15-20, 1.2.3, 5x, 12 + 7, "not 5") is no answer. Other LaTeX is compared as mathematics, within limits, by `math_worker`.
"""

import functools
import numbers
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np

from lad_utils.math_worker import same_mathematics

LONGEST_NUMBER = 400  # digits, and the largest exponent; bounds the integer arithmetic
LONGEST_ANSWER = 1000  # characters after the marker, in the box or after the phrase
WINDOW = 2000  # characters before the last digit, and after it, in which a long text's last number is read
CONTEXT = 60  # characters before a last number that may make it a part of something else

MARKER = re.compile(r"####+\s*+(?:[*_]*(?:the )?(?:final )?answer[ *_:]*\n\s*+)?", re.IGNORECASE)  # `#### Answer` is a heading
BOX_EVENTS = re.compile(r"\\boxed\s?\{|\\[{}\\]|[{}]")
PHRASE = re.compile(r"\banswer\b[*_]{0,3}[ \t]{0,9}(?:is\b|:)[\s:*_]*(?:(?:\\\[|\$\$)[ \t]*\n\s*)?(?=\S)", re.IGNORECASE)
SPACES = re.compile(r"[^\S\n]{2,}")
THIN_SPACE = re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
DEGREES = re.compile(r"°(?:[ ]?[CF](?![A-Za-z]))?|℃|℉")
SIGNS = str.maketrans(dict.fromkeys("−‐‑﹣－", "-") | {"％": "%"})
# Digits joined by . , / : ^ ' are one token, so 3/4, 3:30, 1.2.3, 1 234 and 1.234,00 never yield a part of themselves. A minus
# after a digit, letter or bracket subtracts (5-3, 15-20, COVID-19); a spaced one negates only at the start or after '='.
NUMBER = re.compile(
    r"(?=[-–NnMm$€£¥.0-9])(?P<sign>(?<![0-9A-Za-z)\]}%$.])[-–]|(?:^|(?<==[ ]))[-–][ ]"
    r"|\b[Nn]egative[ ]|(?:^|(?<=\bis[ ])|(?<=[=:][ ]))[Mm]inus[ ])?"
    r"(?:[$€£¥](?P<sign_after_currency>-)?)?(?<![A-Za-z0-9_^{√∛∜\\])(?<![0-9][,:/])(?<![^A-Za-z.]\.)"
    r"(?:(?P<whole>[0-9]{1,9})[ ](?=[0-9]+/[0-9]+(?![/0-9])))?"
    r"(?P<body>(?:(?<![0-9A-Za-z.])\.)?[0-9](?:[0-9]|[.,/:^'’_·](?=[0-9])|(?<![0-9]{4})[ ](?=[0-9]{3}(?![0-9])))*)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)(?![A-Za-z0-9.]))?"
)
DECIMAL = r"(?:[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)|[0-9]+|(?=\.))(?:\.[0-9]+)?"
RATIONAL = re.compile(rf"({DECIMAL})(?:/({DECIMAL}))?")
SCALES = "hundred|thousand|million|billion|trillion|bn|mn"
WORDS = "sin|cos|tan|log|ln|exp|sqrt|mod|plus|minus|times"
FUNCTIONS = f"{WORDS}|pi|max|min|or|and|to|not|if|divided|over|squared|cubed|{SCALES}"
LARGER_UNITS = "hours?|minutes?|feet|foot|ft|dollars?|pounds?|lbs?|years?|months?|weeks?|days?"
GLUED = r"(?:st|nd|rd|th|kg|mg|cm|mm|km|ml|mL|lb|lbs|oz|ft|hr|am|pm)(?![A-Za-z])|(?!xyz|abc|pi|sqrt|sin|cos|tan|log)[A-Za-z]{3}"
UNIT = rf"(?!(?:{FUNCTIONS})\b)(?:[A-Za-z]{{2,}}+|[mghsLlW]\b)"
# What may follow a number that fills a whole answer: percent, currency, a unit (`square feet`, `cm^2`, `miles/hour`).
WHOLE_TAIL = re.compile(
    rf"\s*+[%$€£]*+\s*+(?:(?:(?<![0-9])|(?={GLUED})){UNIT}(?:\.?[ /-]{UNIT}){{0,5}}[ ]?(?:\^\{{?[23]\}}?|[²³])?)?[\s.,;?$]*"
)
# After a number: what shows that it only starts an expression, a list, a hedge or a compound (an example beside each line).
SPACE = r"[^\S\n]*+"
CONTINUES = re.compile(
    rf"[%$]?(?:[({{]|(?=[A-Za-z])(?!{GLUED})|\+(?![0-9A-Za-z])|(?<=%)[ ]of[ ][$]?[0-9]"  # 5(x), 5x, 5+, 5% of 40
    rf"|{SPACE}(?!</|<\|)(?:[\^\\_√¹²³⁰-₟¼-¾⅐-↋‰∀-⋿]"  # 5^2, 5 \times, 5½; but a tag ends the answer
    rf"|[-–+*/×÷·±<>≤≥~=:|!]++{SPACE}[$({{\\]*(?:[-.]?[0-9]|[A-Za-z](?![A-Za-z]))"  # 5 + 3, 5 = x
    rf"|(?:[,&]{SPACE})?(?:\b(?:and|or|to|vs|versus)\b{SPACE})?[$]?-?\.?[0-9]"  # 5, 6
    rf"|(?:{FUNCTIONS})\b(?![^\S\n]++[a-z])|(?:or|{SCALES})\b"  # 5 squared, 5 or so, 5 million
    rf"|(?![mghsLlWaAI])[A-Za-z](?![A-Za-z'])|(?:{LARGER_UNITS}|remainder)[ ,]++(?:and )?[$]?[0-9]"  # 5 x, 5 hours 30
    r"|(?:percent of|(?:less|more|fewer|greater) than|[A-Za-z]++,? and|(?:[A-Za-z]++[ ]){1,3}[+*/×÷x])"  # 5 cups * 3
    r"[ ]?[$(]*[0-9]))"
)
# Before a last number: what shows that it only ends an expression, a comparison, a list, a range or a denial.
JOINED = re.compile(
    r"(?:(?:[0-9)\]}%!]|(?<![A-Za-z])[a-z])[ \t]*[-–+*/×÷^±∀-⋿][ \t]*[({\\]*"  # 12 + 7, x - 7
    r"|[0-9][ \t]*(?:[x%:]|R|r|remainder|\.{2,3})[ \t]*|[0-9%],? or |%[ ]of[ ]"  # 12 x 7, 12 R 7, 12 or 7
    rf"|\b(?:{WORDS}|twice|divided by|multiplied by|(?:half|third|quarter|percent|root|square|cube) of)[ \t]*[({{\\]*"
    r"|(?:(?<![<\w/-])\w*[\w)\]}][ ]?[<>]=?|!=|[≈~≠≤≥±]|\\(?:neq?|approx|[lg]eq?|[lg]t|pm|sim)|\b(?:not|than)|n't)[ \t]*"
    r"|[(\[{][-$0-9., ]*[0-9],[ ]?|(?<!from )(?<![0-9.,$])\$?[0-9][0-9.,]*%? to "  # (12, 7; 12 to 7
    rf"|\b(?:between|both) \$?[0-9][0-9.,]*%?(?: [a-z]+)? and |[0-9] (?:{LARGER_UNITS}) (?:and )?)\Z"  # 12 hours 7
)
CLEANERS = [  # in this order
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"<<[^<>]*>>", ""),  # calculator annotations of GSM8K
        (r"\\q?quad(?![A-Za-z])|(?<=[0-9{}])~(?=\s?\\?[A-Za-z])", " "),
        (r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname)\s?\{([^{}]*)\}", r" \1 "),
        (r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)(?:[ ]{0,2}[CF])?(?![A-Za-z])|\\(?:left|right|displaystyle)(?![A-Za-z])|\\!", ""),
        (r"\{,\}|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))", ","),
        (r"\\([%$#&])", r"\1"),
        (r"\\[()\[\],;: \\]", " "),
    )
]
FRACTIONS = [  # `\dfrac{1}{2}` as 1/2, for numbers only: `16^\frac{1}{2}` is not 16^1/2
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dt]?frac\s?(?:\{ ?(-?[0-9.]+) ?\} ?\{ ?([0-9.]+) ?\}|([0-9])([0-9]))(?!\s?[0-9\\({^])", r"<\1\3/\2\4>"),
        (r"(?<=[0-9])\s?<([0-9.]+/[0-9.]+)>", r" \1"),  # mixed: 2\frac{1}{2}
        (r"(?<![-0-9])<(-?[0-9.]+/[0-9.]+)>|<([0-9.]+/[0-9.]+)>", r"\1\2"),
    )
]
NULL_GOLDS = {"", "n/a", "na", "nan", "none", "null", "tbd", "?", "-"}
LATEX = re.compile(r"[\\^{}_√π]")


def completion_text(completion) -> str:
    """Text of a completion: a str, None (empty) or chat messages, of which the last assistant turn counts; else TypeError."""
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, dict) else completion
    if isinstance(messages, (list, tuple, np.ndarray)) and all(isinstance(message, dict) for message in messages):
        contents = [message.get("content") for message in messages if message.get("role", "assistant") == "assistant"]
        completion = contents[-1] if contents else None
        if isinstance(completion, (list, tuple, np.ndarray)) and all(isinstance(part, dict) for part in completion):
            completion = "".join(part.get("text") or "" for part in completion)  # as multimodal chats have it
    if completion is None or isinstance(completion, str):
        return completion or ""
    raise TypeError(f"completion: found {type(completion).__name__} {repr(completion)[:80]}, expected a str or chat messages")


def _squeezed(completion) -> str:
    """Text with runs of spaces made one, so that no run can hide what stands before or after a number."""
    text = completion_text(completion)
    return text if text.isascii() and "  " not in text and "\t" not in text else SPACES.sub(" ", text)


def _clean(text: str, *, fractions: bool = True) -> str:
    """Text with simple LaTeX and markdown written plainly: `\\dfrac{1}{2}` is 1/2, `5\\text{ cm}` is 5 cm, `**5**` is 5."""
    if not text.isascii():
        text = DEGREES.sub("", THIN_SPACE.sub(",", text.translate(SIGNS)))
    if "\\" in text or "{" in text or "<<" in text:
        for pattern, replacement in CLEANERS:
            text = pattern.sub(replacement, text)
    if fractions and "frac" in text:
        for pattern, replacement in FRACTIONS:
            text = pattern.sub(replacement, text)
    return text.replace("**", "")


def _number(match: re.Match, text: str, *, whole: bool) -> tuple[str, Fraction] | None:
    """Literal and value; None if malformed (3:30, 1/0) or if more than a unit (`whole`) or mathematics follows in `text`."""
    parts = RATIONAL.fullmatch(match["body"]) if len(match["body"]) <= LONGEST_NUMBER else None
    if parts is None or not (WHOLE_TAIL.fullmatch(text, match.end()) if whole else not CONTINUES.match(text, match.end())):
        return None
    numerator, denominator = (re.sub("[, ]", "", part or "1") for part in parts.groups())
    exponent, signs = match["exponent"] or "0", (match["sign"], match["sign_after_currency"])
    if len(exponent) > 5 or abs(int(exponent)) > LONGEST_NUMBER or not Fraction(denominator) or all(signs):
        return None
    value = Fraction(numerator) / Fraction(denominator) * Fraction(10) ** int(exponent) + int(match["whole"] or 0)
    literal = numerator if parts[2] is None and match["exponent"] is None else str(value)
    return (f"-{literal}", -value) if any(signs) else (literal, value)


def _leading_number(text: str, *, whole: bool) -> tuple[str, Fraction] | None:
    text = re.sub(r"(?<=[0-9])\s?/\s?(?=[0-9])", "/", _clean(text)).strip(" \t\r\n*_\"'")
    text = re.sub(r"^\(([^()]*)\)(?=\W*$)|^\$\s+|^\+(?=[0-9])", r"\1", text)
    match = NUMBER.match(text)
    return None if match is None else _number(match, text, whole=whole)


def _last_number(text: str) -> str | None:
    if len(text) > 2 * WINDOW:  # a digit further back cannot change which number is last
        last = max(text.rfind(digit) for digit in "0123456789")
        text = text[max(0, last - WINDOW) : last + WINDOW]
    text = _clean(text)
    matches = deque(NUMBER.finditer(text), maxlen=1)
    found = _number(matches[0], text, whole=False) if matches else None
    if found is None or JOINED.search(text[max(0, matches[0].start() - CONTEXT) : matches[0].start()]):
        return None
    return found[0]


def parse_number(text: str) -> Fraction | None:
    """Exact value of a text that is one number (with currency, percent, commas, unit), else None. Never rounds."""
    found = _leading_number(text, whole=True) if len(text) <= LONGEST_ANSWER else None
    return None if found is None else found[1]


def _answer(segment: str, *, whole: bool = False, prose: bool = False) -> str | None:
    """Answer stated by the text of a marker, a box (`whole`) or a phrase (`prose`: the number may stand inside a sentence)."""
    if whole and len(segment) > LONGEST_ANSWER:
        return None
    cut, segment = len(segment) > LONGEST_ANSWER, segment[:LONGEST_ANSWER].strip().strip("*_`").strip()
    # `12 + 7 = 19` and `x = 19` state 19; `x = 5, y = 7` and `y + 3x = 0` state no single value.
    left, _, right = segment.rpartition("=")
    variable = re.fullmatch(r"\W*[A-Za-z](?:_\w|\(\w\))?\s*", left)
    other = re.search(
        r"(?<![A-Za-z\\])(?!x [0-9(])[A-Za-z](?![A-Za-z])|,(?![0-9]{3})|\\(?:[tq]|be|ne)|[<>!]$|\b(?:and|or)\b", left
    )
    stated = right.strip() if right.strip() and (variable or not other) else segment
    found = _leading_number(segment, whole=whole)
    if found is not None or cut:  # the end of a text that was cut may be a part of a number
        return None if found is None else found[0]
    if (found := _leading_number(stated, whole=whole)) is not None:
        return found[0]
    formula = None if whole else re.search(r"\$(?![0-9.,]+ [A-Za-z])((?:\\\$|[^$])+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", segment)
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
    text = _squeezed(completion)
    marker = MARKER.search(text)
    if marker is not None:  # one character more, so that a cut is seen
        text = re.split(r"\n|(?<!\\);|####", text[marker.end() : marker.end() + LONGEST_ANSWER + 1], maxsplit=1)[0]
    box = _last_box(text) if "\\boxed" in text else None
    if box is not None or marker is None:
        return None if box is None else _answer(box, whole=True)
    phrase = PHRASE.search(text)
    return _answer(text[phrase.end() if phrase else 0 :])


def extract(completion) -> str | None:
    """The stated answer without commas, currency and unit (`The answer is $1,234.` gives `1234`), or None."""
    text = _squeezed(completion)
    if "####" in text or ("\\boxed" in text and _last_box(text) is not None):
        return extract_strict(text)
    phrases = list(PHRASE.finditer(text))
    return _answer(text[phrases[-1].end() :].split("\n", 1)[0], prose=True) if phrases else _last_number(text)


def gold_answer(text) -> str | None:
    """Final answer of a gold column (`...#### 18` gives `18`, 5.0 gives `5`); None if unusable: `see figure 3` is not 3."""
    if not isinstance(text, (str, numbers.Real, Decimal)) or isinstance(text, bool) or str(text).strip().lower() in NULL_GOLDS:
        return None
    text = str(int(text)) if isinstance(text, (float, np.floating)) and float(text).is_integer() else str(text).strip()
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
    reference = re.search(r"\b(?:see|figure|fig|page|diagram)\b|^[$]?[0-9.,]+\s?[-–]\s?[$]?[0-9.,]+$", answer, re.IGNORECASE)
    usable = not prose and not reference and re.search(r"[0-9A-Za-z]", bare) and ("\\" in answer or " or " not in answer)
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
    plain_stated, plain_gold = (re.sub(r"[\s$%]+", " ", _clean(text, fractions=False)).strip(" .") for text in (stated, gold))
    if plain_stated.replace(" ", "") == plain_gold.replace(" ", ""):
        return gold_value is None
    if gold_value is not None and not LATEX.search(stated):
        return False  # an unevaluated `12 + 7` is no answer to 19: only LaTeX or a symbolic gold asks for mathematics
    return same_mathematics(plain_stated, plain_gold)


def _verdict(stated: str | None, answer) -> bool:
    try:
        return _agrees(stated, answer)
    except TypeError:  # a list or dict, which the cache cannot hold
        _gold.__wrapped__(answer)
        raise


def verify(completion, answer) -> bool:
    """True if `completion` states `answer` (a str, an int, or a full solution). Raises ValueError for an unusable gold."""
    return _verdict(extract(completion), answer)


def verify_strict(completion, answer) -> bool:
    """As `verify`, but only a `####` marker or a balanced `\\boxed{}` counts."""
    return _verdict(extract_strict(completion), answer)
