"""One GPU a job on a machine of several: `python -m lad_utils.devices 4 -- command ...` runs the command on a free one of 4.

A device is taken by an exclusive lock on its file, which the kernel drops with its holder: what is killed leaves nothing to
clean up. The command sees its device alone, by CUDA_VISIBLE_DEVICES. Inside Slurm, which hands out devices itself, that
variable is left as it is. Locks are one user's and one machine's: they keep all of a user's studies there apart.
"""

import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path

USAGE = "usage: python -m lad_utils.devices COUNT -- command [argument ...]"


def device_names(count: int) -> list[str]:
    """`count` devices: the first that CUDA_VISIBLE_DEVICES names, else 0, 1, ...; ValueError when it names fewer."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(count)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if len(names) < count:
        raise ValueError(f"devices: expected {count}, found {len(names)}: CUDA_VISIBLE_DEVICES is {visible!r}")
    return names[:count]


def take_device(names: list[str], folder: Path) -> tuple[str, int]:
    """(name of a device, handle of its lock) as soon as one is free; it is held until all copies of the handle are closed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = False
    while True:
        for name in names:
            handle = os.open(folder / f"{name.replace('/', '_')}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return name, handle
            except BlockingIOError:
                os.close(handle)
        if not told:
            told = True
            print(f"devices: all of {', '.join(names)} are taken; waiting for one", file=sys.stderr, flush=True)
        time.sleep(0.2)  # no call waits for whichever of several locks is free first


def main(arguments: list[str]) -> int:
    """Become the command, on a device of its own; an exit code when that can't be."""
    if len(arguments) < 3 or not arguments[0].isdecimal() or arguments[1] != "--":
        print(USAGE, file=sys.stderr)
        return 2
    count, command = int(arguments[0]), arguments[2:]
    try:
        if count and "SLURM_JOB_ID" not in os.environ:
            locks = Path(tempfile.gettempdir()) / f"lad-devices-{os.getuid()}"
            os.environ["CUDA_VISIBLE_DEVICES"], handle = take_device(device_names(count), locks)
            os.set_inheritable(handle, True)  # the command holds the lock from here on
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:
        print(f"devices: {error} ({command[0]})" if isinstance(error, OSError) else error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
