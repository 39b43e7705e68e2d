"""A verdict asked of a process of its own, under limits of time and memory.

A policy may write anything, so what reads its text may never end or fill the memory, and a limit by signals works on the main
thread only. Here any thread and any forked child may ask; a question past its limits is answered False.
"""

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

CPU_SECONDS = 3  # the limit that counts: unlike wall-clock time it gives the same verdict on a loaded machine
WALL_SECONDS = 30.0
START_SECONDS = 60.0
MEMORY_BYTES = 2**30
REQUESTS = 20_000  # per process: what sympy and the parser keep grows by about 1 MB a thousand, towards the memory limit


class LimitedWorker:
    """A process of `python -m module`, started at first use: a line of JSON in, a line out, one request at a time."""

    def __init__(self, module: str):
        self.module = module
        self.lock, self.process, self.starts, self.served = threading.Lock(), None, 0, 0
        atexit.register(self.leave)
        os.register_at_fork(after_in_child=self.forget)

    def ask(self, *request: str) -> bool:
        """The module's verdict; False past a limit. Raises RuntimeError if no process can be started."""
        request = json.dumps(request).encode() + b"\n"
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
        command = [sys.executable, "-m", self.module]
        folder = Path(__file__).resolve().parents[1]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, bufsize=0, **pipes)
        self.starts, self.served = self.starts + 1, 0
        if _line(self.process, START_SECONDS) != b"ready\n":
            raise RuntimeError(f"{self.module}: it did not start, expected `ready`; is the environment installed?")

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


def answer_lines(verdict: Callable[..., bool]) -> None:
    """The process's side: say `ready`, then the verdict on each line; an exception of its own is False."""
    os.write(1, b"ready\n")  # one write a line, so that the other side reads whole lines
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends it even inside C code, and without a parent
        try:
            agrees = verdict(*json.loads(line))
        except Exception:
            agrees = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, b"true\n" if agrees else b"false\n")


def limit_memory() -> None:
    """The process's first step."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops this process
