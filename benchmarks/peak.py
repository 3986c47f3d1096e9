"""What the machine can do at most: fp32 matrix products, one process with one thread per core, all at once."""

from __future__ import annotations

import subprocess
import sys
import time

SIZE = 768


def matrix_peak(cores: int, seconds: float) -> float:
    """Floating-point operations per second, summed over all cores."""
    command = [sys.executable, "-m", "benchmarks.peak", str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(cores)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # ready
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in processes)


def measure(seconds: float) -> float:
    """The speed of this process alone, over so many seconds."""
    import torch

    torch.set_num_threads(1)
    first, second, product = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE), torch.empty(SIZE, SIZE)
    for _ in range(3):
        torch.mm(first, second, out=product)
    print("ready", flush=True)
    sys.stdin.readline()
    products, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        torch.mm(first, second, out=product)
        products += 1
    return products * 2 * SIZE**3 / (time.perf_counter() - start)


if __name__ == "__main__":
    print(measure(float(sys.argv[1])))
