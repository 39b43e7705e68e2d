"""Whether two LaTeX texts are the same mathematics: `math-verify` in a process of its own, under limits of time and memory.

A policy may write anything, so a comparison may never end or fill the memory, and `math-verify` limits itself by signals that
work on the main thread only. Here any thread and any forked child may ask; a comparison past its limits is False.
"""

import atexit
import contextlib
import functools
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

CPU_SECONDS = 3  # the limit that counts: unlike wall-clock time it gives the same verdict on a loaded machine
WALL_SECONDS = 30.0
START_SECONDS = 60.0
MEMORY_BYTES = 2**30
REQUESTS = 20_000  # per process: what sympy and the parser keep grows by about 1 MB a thousand, towards the memory limit

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


class MathWorker:
    """A process started at first use: a line of JSON in, a line out, one request at a time."""

    def __init__(self):
        self.lock, self.process, self.starts, self.served = threading.Lock(), None, 0, 0

    def ask(self, stated: str, gold: str) -> bool:
        """True if both parse and are equal; False past a limit. Raises RuntimeError if no process can be started."""
        request = json.dumps([stated, gold]).encode() + b"\n"
        with self.lock:
            for _ in range(2):  # again if someone else ended the process, say for the machine's memory: that is no verdict
                reply, ended = self._exchange(request)
                if reply or ended == -signal.SIGPROF or ended is None:
                    break
        return reply == b"true\n"

    def stop(self) -> int | None:
        """End the process; its exit status, or None if it was still running."""
        process, self.process = self.process, None
        if process is None:
            return None
        status = process.poll()
        process.kill()
        process.communicate()
        return status

    def leave(self) -> None:
        """At exit: as `stop`, but a thread may still wait for a reply, so the pipes stay open for it to see the end."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """In a forked child: share neither the parent's pipes nor a lock that another of its threads may hold."""
        process, self.lock, self.process = self.process, threading.Lock(), None
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # it is not this process's child to wait for

    def _start(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # sympy orders terms by hash, and time depends on the order
        command = [sys.executable, "-m", "lad_utils.math_worker"]
        folder = Path(__file__).resolve().parents[1]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, bufsize=0, **pipes)
        self.starts, self.served = self.starts + 1, 0
        if _line(self.process, START_SECONDS) != b"ready\n":
            raise RuntimeError("math worker: it did not start, expected `ready`; is math-verify installed?")

    def _exchange(self, request: bytes) -> tuple[bytes | None, int | None]:
        """The reply (b"" if the process ended, None if it took too long) and the exit status of a process that ended."""
        if self.process is not None and (self.served >= REQUESTS or self.process.poll() is not None):
            self.stop()
        reply, ended = None, None
        try:
            if self.process is None:
                self._start()
            process = self.process
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request)
            reply = _line(process, WALL_SECONDS)
            self.served += 1
            if reply == b"":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
        finally:
            if not reply:  # also on an interrupt: a late reply must never meet the next request
                ended = self.stop()
        return reply, ended


def _line(process: subprocess.Popen, seconds: float) -> bytes | None:
    """One line of the process, which writes it in one piece; b"" when it ended, None when it took longer."""
    poller = select.poll()
    poller.register(process.stdout, select.POLLIN)
    return os.read(process.stdout.fileno(), 64) if poller.poll(seconds * 1000) else None


WORKER = MathWorker()
atexit.register(WORKER.leave)
os.register_at_fork(after_in_child=WORKER.forget)


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
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops this process
    from math_verify import LatexExtractionConfig, parse, verify

    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    read = functools.partial(parse, extraction_config=latex, fallback_mode="no_fallback", parsing_timeout=None)
    verify(read(r"$\frac{1}{2}$"), read("$0.5x$"))  # pays the first call's set-up before the clock runs
    os.write(1, b"ready\n")  # one write a line, so that the other side reads whole lines
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends it even inside C code, and without a parent
        try:
            stated, gold = (read(f"${text}$") for text in json.loads(line))
            agrees = bool(stated and gold and verify(gold, stated, float_rounding=12, timeout_seconds=None))
        except Exception:
            agrees = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, b"true\n" if agrees else b"false\n")


if __name__ == "__main__":
    _serve()
