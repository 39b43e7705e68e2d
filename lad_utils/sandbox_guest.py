"""What runs inside a sandbox: one process holds the answer and serves calls, another holds the tests and makes them.

Started by `lad_utils.sandbox` with Python's `-I -S`, so the standard library alone is here. Only plain data crosses between the
two, so an answer can return values but never reach the asserts, the expected results or the verdict.
"""

import builtins
import contextlib
import json
import os
import resource
import sys

SEQUENCES = {kind.__name__: kind for kind in (tuple, set, frozenset)}


class NoReplyError(BaseException):
    """The answer's process ended or wrote what is no reply; no `except Exception` of the tests hides it."""


def pack(value):
    """JSON that `unpack` turns into an equal value: None, bool, int, float, complex, str, bytes and containers of them."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, dict):
        return {"kind": "dict", "items": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"kind": "bytes", "items": list(value)}
    if isinstance(value, complex):
        return {"kind": "complex", "items": [value.real, value.imag]}
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return {"kind": name, "items": [pack(item) for item in value]}
    raise TypeError(f"found a {type(value).__name__}, expected plain data")


def unpack(value):
    """The value that `pack` was given."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, items = value["kind"], value["items"]
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in items}
    if kind == "bytes":
        return bytes(items)
    if kind == "complex":
        return complex(*items)
    return SEQUENCES[kind](unpack(item) for item in items)


def confine(limits: dict, uid: int | None) -> None:
    """Give up root and set limits that cannot be raised again: CPU seconds, bytes, processes; no file can grow."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for name, most in (
        ("CPU", limits["cpu_seconds"]),
        ("AS", limits["memory_bytes"]),
        ("NPROC", limits["processes"]),
        ("FSIZE", 0),
        ("CORE", 0),
        ("NOFILE", 64),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def serve(program: str, calls, replies) -> None:
    """Run the answer's program, then call its functions as asked, a line of JSON each, until the tests end."""
    space = {"__name__": "answer"}
    exec(compile(program, "<answer>", "exec"), space)
    for line in calls:
        request = json.loads(line)
        try:
            reply = {"value": pack(space[request["name"]](*unpack(request["args"]), **unpack(request["kwargs"])))}
        except Exception as error:
            reply = {"error": type(error).__name__}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


class Candidate:
    """The answer's function as the tests see it; `calls` says whether they called it at all."""

    def __init__(self, name: str, most: int, calls, replies):
        self.__name__, self.most, self.out, self.replies, self.calls = name, most, calls, replies, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        try:
            self.out.write(json.dumps({"name": self.__name__, "args": pack(list(args)), "kwargs": pack(kwargs)}) + "\n")
            self.out.flush()
            line = self.replies.readline(self.most + 1)
            reply = json.loads(line) if line.endswith("\n") else {}
            if "value" in reply:
                return unpack(reply["value"])
            name = reply["error"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            raise NoReplyError(type(error).__name__) from None
        kind = getattr(builtins, str(name), None)
        plain = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, (AssertionError, UnicodeError))
        raise (kind if plain else RuntimeError)(f"{self.__name__} raised {str(name)[:80]}")


def run_tests(tests: dict, candidate: Candidate) -> str:
    """`passed`, or why not: the tests are top-level asserts or HumanEval's `check(candidate)`."""
    space = {"__name__": "tests"}
    try:
        exec(compile(tests["prompt"], "<prompt>", "exec"), space)
        space[tests["entry_point"]] = candidate
        exec(compile(tests["test"], "<tests>", "exec"), space)
        if callable(space.get("check")):
            space["check"](candidate)
    except BaseException as error:
        return f"failed: {type(error).__name__}"
    return "passed" if candidate.calls else "failed: the tests never called it"


def main(descriptor: int, verdict: int) -> None:
    """`descriptor` holds the job; a line on `verdict` (the tests' process only, else -1) says what came out."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        job = json.load(file)
    incoming = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    confine(job["limits"], job["uid"])
    if verdict < 0:
        outgoing.write("ready\n")
        outgoing.flush()
        serve(job["program"], incoming, outgoing)
        return
    started = incoming.readline(16) == "ready\n"
    os.write(verdict, b"ready\n" if started else b"the answer's process did not start\n")
    if started:
        said = run_tests(
            job["tests"], Candidate(job["tests"]["entry_point"], job["limits"]["output_bytes"], outgoing, incoming)
        )
        os.write(verdict, said.encode())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(int(sys.argv[1]), int(sys.argv[2]))
