"""Claims about the answer checker; ids in comments name the field case that a test guards against."""

import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lad_utils import limited_worker, verifier
from lad_utils.math_worker import WORKER
from lad_utils.verifier import completion_text, extract, extract_strict, gold_answer, parse_number, verify, verify_strict

DATA = Path(__file__).resolve().parents[1] / "../shared/data"
RUN_ON = "#### 5\n\nQuestion: Tom has 7 apples.\n#### 7"


def box(text):
    return f"so it is \\boxed{{{text}}}."


def gsm8k_answers(split):
    path = DATA / "gsm8k" / f"{split}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not on this machine")
    return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Her order is $29.00.", "29"),  # A01
        ("The answer is $1,234.00", "1234"),  # A01
        ("It is 1\u202f234.", "1234"),  # A01
        (box(r"1\ 234"), "1234"),  # A01
        (r"The answer is $\$29$.", "29"),  # A01
        ("Tom pays $2 and the answer is that Ann pays $18.", "18"),  # A01
        ("The answer is 72, in total, so the farmer earns that much.", "72"),  # A02
        ("The answer is 72, not 70.", "72"),  # A02
        ("The answer is 72 (since 70 + 2 = 72).", "72"),  # A02
        (RUN_ON, "5"),  # A03
        ("#### 5</s>", "5"),  # A03
        ("#### 5<|im_end|>\n#### 7", "5"),  # A03
        ("#### Final Answer\n\n5", "5"),  # A03
        ("####\n\n5\n#### 7", "5"),  # A03
        ("#### -3", "-3"),  # A05
        ("#### −3", "-3"),  # A05
        ("It is ‑3", "-3"),  # A05
        ("The answer is negative 3.", "-3"),  # A05
        ("The answer is minus 3.", "-3"),  # A05
        (r"The answer is -\$3", "-3"),  # A05
        ("It is -3°C.", "-3"),  # A05
        (box(r"\frac{-6}{2}"), "-3"),  # A05
        ("#### $-3", "-3"),
        ("#### -$3", "-3"),
        ("#### 2125", "2,125"),  # A07
        ("#### 2,125", "2125"),  # A07
        ("9.0", "9"),  # A09
        (box(r"\frac{1}{2}"), "0.5"),  # A12
        (box(r"2\frac{1}{2}"), "2.5"),
        (box(r"\dfrac34"), "3/4"),
        (box(r"\frac{\frac{1}{2}}{2}"), "0.25"),  # A12
        (box(r"\boxed{5}"), "5"),  # A12
        (box(r"\mathbf{5}"), "5"),  # A12
        (box(r"18 \text{ cm}^2"), "18"),  # A12
        (box(r"18\text{ sq. ft.}"), "18"),  # A12
        ("so 15 apples", "15"),  # A16
        ("The answer is 3.14", "3.14"),  # A17
        ("The answer is .5", "1/2"),
        ("25%", "25"),  # A18
        (box(r"25\%"), "25"),  # A18
        ("25％", "25"),  # A18
        ("016", "16"),  # A19
        ("#### -016.0", "-16"),  # A19
        ("#### 16", "016"),  # A19
        ("12 + 7 = 19 ; 19 * 3 = 57 ; #### 57", "57"),
        ("12 + 7 = 19 19 * 3 = 57 #### 57", "57"),
        ("So she has 18.\n#### 18", "She has 9 + 9 = 18.\n#### 18"),  # G07
        ("#### **5**", "5"),
        ("#### 5 eggs per day", "5"),
        ("**Answer:** 5", "5"),
        ("Answer: Janet makes $18 every day.", "18"),
        ("The answer is 12 + 7 = 19.", "19"),
        ("The answer is <<9+9=18>>18.", "18"),
        (box(r"x = 5 \text{ cm}"), "5"),
        (box("1{,}234"), "1234"),
        ("\\boxed{7} and then \\boxed{5", "7"),
        ("The area is 12 cm^2", "12"),
        ("It is 5 - 8 = - 3", "-3"),
        ("The answer is 9 x 2 = 18 dollars.", "18"),
        ("The answer is 15 gallons * 8 pints / gallon = 120 pints", "120"),
        ("The final answer is:\n\\[\n18\n\\]", "18"),
        ("The price went from 20 to 18", "18"),
        ("<answer>18</answer>", "18"),
        ("That leaves 18 eggs\n\nQ: How many are left?", "18"),
    ],
)
def test_right_answers_are_accepted(completion, answer):
    assert verify(completion, answer) is True


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("The answer is $1,234.00", "234"),  # A01
        ("It is $1 234.", "234"),  # A01
        ("It is 1'234.", "234"),  # A01
        ("It is 1\u202f234.", "234"),  # A01
        ("It takes 15 - 20 days", "20"),  # A02
        ("It takes 15 to 20 days", "20"),  # A02
        ("The answer is between 15 and 20", "20"),  # A02
        (RUN_ON, "7"),  # A03
        ("#### 5\n\\boxed{7}", "7"),  # A03
        ("#### 5\nThe answer is 7", "7"),  # A03
        ("#### 3", "-3"),  # A05
        ("The answer is negative 3.", "3"),  # A05
        ("The answer is minus 3.", "3"),  # A05
        ("It is ‑3", "3"),  # A05
        ("It is -$3", "3"),  # A05
        (box("- 3"), "3"),  # A05
        ("#### 2, 125", "2,125"),  # A07
        ("#### 125", "2,125"),  # A07
        ("8.6", "9"),  # A09
        ("8.6", "8"),  # A09
        ("The answer is 8.6 ≈ 9", "9"),  # A09
        (box("8.9999999999999999"), "9"),  # A09
        (box(r"0.333333333333333"), r"\frac{1}{3}"),  # A09
        ("", "5"),  # A10
        (None, "5"),
        ("no idea", "5"),
        ("####", "5"),
        ("so 15 apples", "5"),  # A16
        ("so 15 apples", "1"),  # A16
        ("so 5² apples", "5"),  # A16
        ("The answer is 5½", "5"),  # A16
        ("version v1.5", "5"),  # A16
        ("that is 2^.5", "5"),  # A17
        ("cut off at \\boxed{.5", "5"),  # A17
        ("on 2024-01-05", "5"),  # A16
        ("she sells 12 + 7", "7"),  # A16
        ("she sells 12 x 7 =", "7"),  # A16
        ("so x > 5", "5"),  # A16
        ("the point (3, 5)", "5"),  # A16
        ("it took 2 hours and 5 minutes", "5"),  # A16
        ("The answer is not 5.", "5"),  # A16
        ("The answer isn't 5.", "5"),  # A16
        ("The answer is less than 5", "5"),  # A16
        ("The answer is 5% of 200", "5"),  # A16
        ("The answer is 5 apples and 3 oranges", "5"),  # A16
        ("The answer is 15 gallons * 8 pints / gallon = 120 pints", "15"),  # A16
        ("The answer is 3.14", "3"),  # A17
        ("The answer is 3.14", "14"),  # A17
        ("The answer is 3·14", "14"),  # A17
        ("Answer: 0.5", "5"),  # A17
        ("0.25", "25%"),  # A18
        ("25‰", "25"),  # A18
        ("#### 160", "16"),  # A19
        ("#### 0160", "16"),  # A19
        ("25%", "0.25"),  # A18
        (box(r"25\%"), "0.25"),  # A18
        (box(r"\sqrt{625}\%"), "0.25"),  # A18
        ("The answer is 15-20", "1520"),  # A02, its regex read ranges as one number
        ("The answer is 5 or 6", "5"),
        ("#### 5, 6", "5"),
        ("#### 5 hours and 30 minutes", "5"),
        ("#### 12 + 7", "19"),
        ("#### x = 5, y = 7", "7"),
        ("The answer is x + 5", "5"),
        ("so we get 5x", "5"),
        ("that is 10^5", "5"),
        ("1.234,00", "0"),
        ("at 3:30", "30"),
        ("5 million", "5"),
        ("1/0", "0"),
        ("1e999999999", "1"),
        ("12345678901234567890", "12345678901234567891"),
        ("0.30000000000000004", "0.3"),
        (box(r"\frac{1}{2}x"), "0.5"),
        (box("y+3x-4=0"), "0"),
        (box(r"5 \approx 6"), "5"),
        (r"so $\frac{1}{2}$", "2"),
        (box(r"\sqrt{16}/\frac{1}{2}"), "2"),
        (box(r"16^\frac{1}{2}"), "8"),
        (box(r"2\frac{1}{2}\pi"), r"\pi"),
        (box(r"4\quad 5"), "9"),
        (box("4{5}"), "20"),
        (box("1 2"), "12"),
        (box("25_8"), "25"),
        (box(r"\sqrt{16}\text{\textbf{x}}"), "4"),
        (box(r"\sqrt{16}\text{ million}"), "4"),
    ],
)
def test_wrong_or_ambiguous_answers_are_rejected(completion, answer):
    assert verify(completion, answer) is False


@pytest.mark.parametrize("stated", ["25%", r"\boxed{25\%}", "#### 25%", "The answer is 25 percent."])
def test_a_percent_matches_exactly_one_of_25_and_a_quarter(stated):  # A18
    assert (verify(stated, "25"), verify(stated, "0.25")) == (True, False)


def test_extraction_order_is_marker_then_box_then_phrase_then_number():
    number, phrase, marker = " 4 apples", " the answer is 3 ;", " #### 1\n"
    assert extract(marker + box("2") + phrase + number) == "1"
    assert extract(box("9") + box("2") + phrase + number) == "2"
    assert extract("the answer is 8. " + phrase + number) == "3"
    assert extract(number) == "4"


def test_first_marker_counts_in_a_run_on():  # A03
    assert extract(RUN_ON) == extract_strict(RUN_ON) == "5"
    assert extract("#### 5 Question: 7 apples #### 7") == "5"


def test_strict_score_needs_a_marker_or_a_balanced_box():
    assert extract_strict("The answer is 5") is None
    assert extract_strict("\\boxed{5") is None
    assert not verify_strict("The answer is 5", "5")
    assert verify_strict("#### 5", "5")
    assert verify_strict(box("5"), "5")


@pytest.mark.parametrize(
    "gold",
    [
        *("see figure", "see figure 3", r"\text{see figure 3}", "18 or 19", "15-20", "about 5", "", "N/A", "none", None, True),
        *(float("nan"), float("inf"), np.bool_(True), "#### ?", "#### N/A", "\\boxed{}", ["5"], {"answer": "5"}, b"5"),
    ],
    ids=repr,
)
def test_an_unusable_gold_raises_and_never_rewards(gold):  # A10
    assert gold_answer(gold) is None
    for completion in ("", "#### 3", "see figure", "None"):
        with pytest.raises(ValueError, match="gold answer: found"):
            verify(completion, gold)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("9 + 9 = 18\n#### 18", "18"),  # G07
        ("...#### -3", "-3"),  # A05
        ("2,125", "2125"),  # A07
        (5, "5"),
        (5.0, "5"),
        (np.float32(5), "5"),
        (np.int64(5), "5"),
        (Decimal("5.0"), "5.0"),
        ("016", "016"),
        (r"Hence \boxed{\frac{1}{2}}.", "1/2"),
        ("$12$", "12"),
        (r"99\%", "99"),
        ("5 apples", "5"),
        (r"4\sqrt{2}", r"4\sqrt{2}"),
        ("(16,17)", "(16,17)"),
    ],
)
def test_gold_column_gives_its_final_answer(text, answer):
    assert gold_answer(text) == answer


CHAT = [{"role": "user", "content": "#### 7"}, {"role": "assistant", "content": "#### 5"}]


@pytest.mark.parametrize(
    "completion",
    [
        *("#### 5", CHAT, tuple(CHAT), np.array(CHAT), CHAT[1], [CHAT[1]], [{"content": "#### 5"}], [*CHAT, CHAT[0]]),
        [{"role": "assistant", "content": [{"type": "text", "text": "####"}, {"type": "text", "text": " 5"}]}],
    ],
    ids=repr,
)
def test_text_and_chat_completions_get_the_same_reward(completion):  # D09
    assert verify(completion, "5")
    assert not verify(completion, "6")


def test_chat_completion_without_content_is_empty_and_other_types_raise():
    assert completion_text([{"role": "assistant", "content": None}]) == completion_text([]) == completion_text(None) == ""
    with pytest.raises(TypeError, match="completion: found int"):
        completion_text(5)


def test_numbers_are_exact():
    assert parse_number("0.1") == Fraction(1, 10)
    assert parse_number("-1,234.50 dollars") == Fraction(-2469, 2)
    assert parse_number("1.5e3") == 1500
    assert parse_number("9" * 300) == 10**300 - 1


@pytest.mark.parametrize(
    ("stated", "gold", "expected"),
    [
        (r"16^{\frac{1}{2}}", "4", True),
        (r"\sqrt{16}/\frac{1}{2}", "8", True),
        (r"\log_2 16", "4", True),
        (r"\frac 1 2", "0.5", True),
        ("3√4", "6", True),
        (r"2\frac{1}{2}\pi", r"\frac{5}{2}\pi", True),
        ("x^2y^2", "y^2x^2", True),
        ("25_{8}", "25_8", True),
        ("25_{8}", "25_7", False),
        (r"10^{20}+1", "100000000000000000000", False),
        (r"\sqrt{4}", "2", True),
        (r"\sqrt{2}", "1.414214", False),
        ("1+x", "x + 1", True),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True),
        (r"3 \times 10^{2}", "300", True),
        (r"5 \text{ or } 6", "5", False),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
    ],
)
def test_other_latex_is_compared_as_mathematics(stated, gold, expected):
    assert verify(box(stated), gold) is expected


@contextlib.contextmanager
def background(work, n=1):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def root_of(n):
    """A question that no cache and no earlier test has the answer to: is the root of n squared n?"""
    return verify(box(f"\\sqrt{{{n * n}}}"), str(n))


def test_latex_verdict_is_the_same_off_the_main_thread():  # A15
    verdicts = []
    pairs = [(r"\frac{1}{3}", r"\frac{1}{3}"), (r"\sqrt{9}", "3"), (r"\sqrt{9}", "4")]

    def check(_):
        verdicts.append([verify(box(stated), gold) for stated, gold in pairs])

    verifier._agrees.cache_clear()
    with background(check, n=4):
        pass
    check(0)
    assert verdicts == [[True, True, False]] * 5


def test_many_threads_at_once_get_each_its_own_verdict():  # A15
    verdicts = {}

    def check(i):
        for n in range(100 + i, 200, 16):
            verdicts[n] = (root_of(n), verify(box(f"\\sqrt{{{n * n}}}"), str(n + 1)))

    starts = WORKER.starts
    with background(check, n=16):
        pass
    assert verdicts == dict.fromkeys(range(100, 200), (True, False))
    assert WORKER.starts <= starts + 1


def fork_and(check):
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(0 if check() else 1), daemon=True)
    child.start()
    child.join(30)
    child.kill()  # only if it hangs
    child.join()
    return child.exitcode == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_asks_a_worker_of_its_own():  # A15
    assert root_of(201)
    mine = WORKER.process.pid
    assert fork_and(lambda: root_of(202) and WORKER.process.pid != mine)
    assert root_of(203) and WORKER.process.pid == mine


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_waits_for_the_worker_is_not_locked_out():  # A15
    assert root_of(204)
    os.kill(WORKER.process.pid, signal.SIGSTOP)
    answers = []
    with background(lambda _: answers.append(root_of(205))):
        while not WORKER.lock.locked():
            time.sleep(0.01)
        assert fork_and(lambda: root_of(206))
        os.kill(WORKER.process.pid, signal.SIGCONT)
    assert answers == [True]


def test_tower_of_exponents_is_false_without_a_worker(monkeypatch):  # A14
    monkeypatch.setattr(WORKER, "ask", lambda *pair: pytest.fail(f"asked {pair}"))
    assert not verify(box("9^{9^{9^{9}}}"), "5")
    assert not verify(box("9^9^9^9"), "5")
    assert not verify(box(r"\sqrt{4}"), "9^{9^{9^{9}}}")
    assert not verify(box("10^{100000}"), "5")


BOMBS = pytest.mark.parametrize("bomb_in_gold", [False, True], ids=["in the completion", "in the gold"])


@BOMBS
def test_a_time_bomb_is_false_at_its_first_try_and_the_worker_comes_back(bomb_in_gold):  # A14
    assert root_of(300 + bomb_in_gold)
    starts = WORKER.starts
    bomb = r"10^{9999 \cdot 9999}"
    assert not (verify(box(r"\sqrt{18}"), bomb) if bomb_in_gold else verify(box(bomb), "18"))
    assert root_of(310 + bomb_in_gold)
    assert WORKER.starts == starts + 1


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux shows and sets the limits of another process")
@BOMBS
def test_a_memory_bomb_is_false_and_the_worker_goes_on(bomb_in_gold):  # A14
    WORKER.stop()
    assert root_of(320 + bomb_in_gold)
    worker = WORKER.process.pid
    assert resource.prlimit(worker, resource.RLIMIT_AS) == (limited_worker.MEMORY_BYTES,) * 2
    resource.prlimit(worker, resource.RLIMIT_AS, (200 * 2**20,) * 2)  # so low that the time limit is not what ends it
    bomb = "(x+y+z)^{9999}"
    assert not (verify(box(r"\sqrt{18}"), bomb) if bomb_in_gold else verify(box(bomb), "18"))
    assert root_of(330 + bomb_in_gold) and WORKER.process.pid == worker
    WORKER.stop()


def test_a_late_reply_never_answers_the_next_question(monkeypatch):
    assert root_of(207)
    os.kill(WORKER.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(limited_worker, "WALL_SECONDS", 0.1)
    first = WORKER.process.pid
    assert not root_of(208)
    monkeypatch.undo()
    assert not verify(box(r"\sqrt{25}"), "6")
    assert root_of(209) and WORKER.process.pid != first


def test_a_worker_that_someone_ended_costs_no_verdict():
    assert root_of(210)
    os.kill(WORKER.process.pid, signal.SIGKILL)  # between two questions
    assert root_of(211)
    os.kill(WORKER.process.pid, signal.SIGSTOP)
    answers = []
    with background(lambda _: answers.append(root_of(212))):  # and while it holds one
        while not WORKER.lock.locked():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(WORKER.process.pid, signal.SIGKILL)
    assert answers == [True]


def test_an_old_worker_is_replaced_before_what_it_keeps_fills_its_memory(monkeypatch):
    assert root_of(213)
    first = WORKER.process.pid
    monkeypatch.setattr(limited_worker, "REQUESTS", WORKER.served)
    assert root_of(214) and WORKER.process.pid != first


def ended_interpreter(end):
    """Number of the worker of an interpreter that asked it something, did `end` and is over."""
    asking = "ask = WORKER.ask\nprint(ask('1+x', 'x+1'), WORKER.process.pid, flush=True)"
    program = f"import os, threading, time\nfrom lad_utils.math_worker import WORKER\n{asking}\n{end}"
    folder = Path(verifier.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    answer, pid = done.stdout.split()
    assert (done.returncode, answer, done.stderr) == (0, "True", "")
    return int(pid)


def test_the_worker_is_gone_when_its_interpreter_is_even_with_a_question_open():
    assert not running(ended_interpreter(""))
    bomb = r"threading.Thread(target=ask, args=('10^{9999 \\cdot 9999}', '5'), daemon=True).start()"
    assert not running(ended_interpreter(f"{bomb}\ntime.sleep(0.3)"))


def test_the_worker_of_an_interpreter_that_was_killed_ends_by_itself():
    worker, deadline = ended_interpreter("os._exit(0)"), time.monotonic() + 60
    while running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(worker)


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")


@pytest.mark.parametrize(
    "unit",
    [
        "9",
        "#",
        "\\boxed{",
        "answer is ",
        "1,",
        "-",
        "\\frac{1}{2}",
        " ",
        "\n",
        "{",
        "}",
        "1 / ",
        "5 feet ",
        "<<",
        "\\text{",
        "9 ",
    ],
    ids=repr,
)
def test_a_megabyte_of_anything_is_rejected_in_linear_time(unit):  # a quadratic step would run into the suite's time limit
    hostile = unit * (10**6 // len(unit))
    for lead in ("", "5 ", "#### ", "The answer is ", "\\boxed{5 "):
        assert not verify(lead + hostile + " x", "987654321")
        assert not verify_strict(lead + hostile, "987654321")


def test_the_last_number_of_a_long_text_is_found_and_read_with_what_surrounds_it():
    filler = "and so on " * 1000
    assert verify(f"{filler}3 apples {filler}so 18{filler}"[: -len(filler)] + f" eggs. {filler}", "18")
    assert not verify(f"{filler} so 12 + 18. {filler}", "18")
    assert verify("9" * 5000 + " so 18 " + " " * 5000, "18")
    assert extract("9" * 5000) is None


@pytest.mark.parametrize("lead", ["#### ", "The answer is: "])
def test_no_limit_on_length_cuts_a_number_in_two_or_hides_what_follows_it(lead):
    for n in range(950, 1010):
        for text in (f"{lead}{'y' * n} = 1800", f"{lead}so {'y' * n} and 1800 left", f"{lead}\\boxed{{{'y' * n} = 1800"):
            assert not any(verify(text, gold) for gold in ("1", "18", "180"))
    for n in (10, 100, 1000, 3000):
        for text in (
            f"{lead}5{' ' * n}million",
            f"{lead}5 {chr(9) * n}+ 3",
            f"5{' ' * n}million",
            f"12 +{' ' * n}5",
            f"not{' ' * n}5",
        ):
            assert not verify(text, "5")


@settings(max_examples=1000, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="0123456789\\")))
def test_text_without_digits_never_verifies_against_a_number(text):
    assert not verify(text, "7")


@settings(max_examples=1000, deadline=None)
@given(st.text(alphabet="0123456789 .,-+/$%=#:;()xa\n", max_size=40), st.integers(0, 999))
def test_a_gold_whose_digits_are_absent_is_never_accepted(text, gold):
    digits = text.replace(",", "").replace(" ", "")
    simple = not any(sign in text for sign in "./%")
    assert not (verify(text, gold) and simple and str(gold) not in digits)


PIECES = [
    "#### ",
    "\\boxed{",
    "}",
    "the answer is ",
    "Answer: ",
    "5",
    "17",
    "-",
    "$",
    "%",
    ",",
    ".",
    " ",
    "\n",
    "x",
    "=",
    "\\frac{1}{2}",
]


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(
        st.sampled_from([*PIECES, "/", "^", "(", ")", "\\text{ cm}", "½", "−", "**", "<<", ">>", "and ", "not "]), max_size=14
    )
)
def test_any_text_gets_a_verdict_and_what_is_right_strictly_is_right(pieces):
    text = "".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "same_mathematics", lambda stated, gold: True)
        strict, flexible = verify_strict(text, "5"), verify(text, "5")
        assert verify_strict([{"role": "assistant", "content": text}], "5") == strict
    verifier._agrees.cache_clear()
    assert strict in (True, False) and flexible in (True, False) and flexible >= strict


WAYS = ["{lead}\n#### {}\n\nQuestion: {gold}?\n#### {gold}", "{lead} \\boxed{{{gold}}}, no, \\boxed{{{}}}, not {gold}"]
WAYS += [
    "the answer is {gold}; no: {lead}\nThe answer is {}.\nIt was {gold}.",
    "{lead}\nI had {gold}, so it is {}",
    "x = {}",
    "#### {}",
]
STYLES = [
    "{sign}{n}",
    "{sign}{n:,}",
    "{sign}{n}.00",
    "{sign}${n:,}",
    "{sign}00{n}",
    "{sign}{n} apples",
    "{sign}{n}%",
    "**{sign}{n}**",
]


def stated(number, way, style, gold):
    text = style.format(sign="-" if number < 0 else "", n=abs(number))
    if "boxed" in way:
        text = text.replace("%", "\\%").replace("$", "\\$").replace("**", "")
    return way.format(text, gold=gold, lead="She has 12 + 7 = <<12+7=19>>19 eggs and 3/4 of 8.")


@settings(max_examples=2000, deadline=None)
@given(st.integers(-(10**9), 10**9), st.sampled_from(WAYS), st.sampled_from(STYLES), st.data())
def test_a_stated_number_is_accepted_and_any_other_rejected_wherever_else_the_gold_stands(gold, way, style, data):
    number = data.draw(
        st.sampled_from([gold, gold + 1, gold - 1, -gold, gold * 10, int(gold / 10), gold + 1000, gold * 100 + 25])
    )
    assert verify(stated(number, way, style, gold), str(gold)) is (number == gold)


NOTHING = [
    "{g}-{g}{n}",
    "{n} to {g}",
    "{g} or {n}",
    "{n} or {g}",
    "{g}x",
    "x{g}",
    "{g}^2",
    "2^{g}",
    "{g} million",
    "{g}:30",
    "{n}:{g}",
]
NOTHING += [
    "{n}.{g}.{n}",
    "{g} + {n}",
    "{n} + {g}",
    "{n} * {g}",
    "{n}x{g}",
    "A{g}",
    "{g}/{g}3",
    "not {g}",
    "{g}²",
    "{g}½",
    "{g}e2",
    "{g}k",
]
NOTHING += [
    "x > {g}",
    "({n}, {g})",
    "{g}% of {n}",
    "less than {g}",
    "between {n} and {g}",
    "{n}'{g}",
    "{n}_{g}",
    "{n} ≈ {g}",
    "±{g}",
]
NOTHING += [
    "√{g}",
    "twice {g}",
    "{n} minus {g}",
    "{g} hours and {n} minutes",
    "{g} hours {n} minutes",
    "{n} R {g}",
    "?",
]


@settings(max_examples=1000, deadline=None)
@given(
    st.integers(10, 10**6),
    st.integers(100, 999),
    st.sampled_from(NOTHING),
    st.sampled_from(["#### {}", "The answer is {}.", "{}"]),
)
def test_an_expression_a_range_or_a_denial_that_holds_the_gold_does_not_state_it(gold, other, form, way):
    assert not verify(way.format(form.format(g=gold, n=other)), str(gold))


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_gsm8k_gold_verifies_against_itself_and_no_other_in_every_notation(split):  # A05, A07, A10, G07
    solutions = gsm8k_answers(split)
    golds = [gold_answer(solution) for solution in solutions]
    assert len(golds) == {"train": 7473, "test": 1319}[split] and None not in golds
    assert sum("," in solution.rsplit("#### ", 1)[1] for solution in solutions) == {"train": 79, "test": 14}[split]  # A07
    negative = [row for row, gold in enumerate(golds) if gold.startswith("-")]
    assert negative == {"train": [5715, 5844, 6189], "test": [489, 1113]}[split]  # A05
    for solution, gold in zip(solutions, golds, strict=True):
        number = int(gold)
        sign, size = "-" if number < 0 else "", abs(number)
        for text in (solution, gold, box(gold), f"The answer is {gold}.", f"#### {number:,}", f"It costs {sign}${size:,}."):
            assert verify(text, gold) and verify(text, solution), (text, gold)
            for wrong in {number + 1, number - 1, -number, int(f"{gold}7"), int(f"{sign}7{size}"), int(number / 10)} - {number}:
                assert not verify(text, str(wrong)), (text, wrong)


def test_shuffled_gsm8k_golds_are_accepted_only_where_they_are_equal():
    solutions = gsm8k_answers("test")
    golds = [int(solution.rsplit("#### ", 1)[1].replace(",", "")) for solution in solutions]
    other = random.Random(0).sample(golds, len(golds))
    assert [verify(solution, gold) for solution, gold in zip(solutions, other, strict=True)] == [
        gold == wrong for gold, wrong in zip(golds, other, strict=True)
    ]
