"""Time that ``import mxfp8_ops`` adds to that of torch, and the modules that take most of it.

    python benchmarks/import_time.py [--repeats 5]

Fresh interpreters; the least of the repeats, as processor time, which other work on the machine disturbs
less than the time on the clock.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

CODE = """
import time
import torch
start = time.process_time(), time.perf_counter()
import mxfp8_ops
print(time.process_time() - start[0], time.perf_counter() - start[1])
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def modules() -> list[tuple[float, str]]:
    """(milliseconds of its own, name) of every module that is imported after torch."""
    found = []
    report = run("-X", "importtime", "-c", "import torch; import mxfp8_ops").stderr
    for line in report.splitlines():
        own, _, name = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            found.append((int(own) / 1e3, name.strip()))
    names = [name for _, name in found]
    return found[names.index("torch") + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    times = [tuple(map(float, run("-c", CODE).stdout.split())) for _ in range(arguments.repeats)]
    processor, clock = (min(column) * 1e3 for column in zip(*times, strict=True))
    print(
        f"import mxfp8_ops after torch: {processor:.0f} ms of the processor, {clock:.0f} ms in all"
    )
    for own, name in sorted(modules(), reverse=True)[:8]:
        print(f"{own:8.1f} ms  {name}")


if __name__ == "__main__":
    main()
