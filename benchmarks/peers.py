"""Step time of the peers (Opacus, JAX-Privacy, TF-Privacy) and of tfdpbc on the same models, interleaved in one run.

    make bench-peers [ARGS="--models mlp,convnet --repeats 9 --markdown FILE"]

Every peer lives in a virtual environment of its own (`make bench-peers` makes them) and runs in a worker process that holds
model and data ready; see the workers beside benchmarks/peers/protocol.py. One worker computes at a time. Each repeat asks
every (peer, variant) once, so that a slow moment of the machine hits all of them; times are medians over repeats, ratios
medians of ratios within a repeat. Compilation and warm-up are not counted. The private side is a whole step: drawing the
batch, per-example flat clipping, Gaussian noise, SGD.

"its plain" is a step of the same framework without privacy, "tfdpbc" the private step of tfdpbc's one-pass engine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import resource
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MODELS = ["tutorial_cnn", "mlp", "convnet", "convnet_groupnorm", "resnet18_groupnorm", "transformer"]
OWN = "tfdpbc", "onepass"  # what everything is compared with
CALM = 0.1  # share of the machine's CPU time that others may take during a measurement
ATTEMPTS = 3  # at a calm one


class Peer(NamedTuple):
    """Its virtual environment and its private variants (variant → what the table calls it)."""

    environment: str
    variants: dict[str, str]


PEERS = {
    "tfdpbc": Peer(".venv", {"onepass": "tfdpbc, onepass"}),
    "opacus": Peer(".venv-peers/opacus", {"flat": "Opacus, hooks", "ghost": "Opacus, ghost clipping"}),
    "jax_privacy": Peer(
        ".venv-peers/jax_privacy", {"vmap": "JAX-Privacy, vmap", "micro": "JAX-Privacy, micro-batches of 8"}
    ),
    "tf_privacy": Peer(
        ".venv-peers/tf_privacy",
        {"model": "TF-Privacy, DP model", "optimizer": "TF-Privacy, vectorized optimizer"},
    ),
}


def busy(process: subprocess.Popen[bytes] | None = None) -> float:
    """CPU seconds spent so far by all cores together, or by one process; 0 where there is no /proc."""
    try:
        with open("/proc/stat" if process is None else f"/proc/{process.pid}/stat") as file:
            text = file.read()
    except OSError:
        return 0.0
    if process is None:  # user, nice, system, then idle and waiting for disks, then interrupts and what the host took
        counts = [int(count) for count in text.split("\n")[0].split()[1:9]]
        ticks = sum(counts) - counts[3] - counts[4]
    else:
        ticks = sum(int(count) for count in text.rsplit(")", 1)[1].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def settle(seconds: float) -> None:
    """Waits until the machine is idle for half a second, at most `seconds`."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        before = busy()
        time.sleep(0.5)
        if busy() - before < 0.5 * os.cpu_count() * CALM:
            return


class Failed(Exception):
    """No time for this variant; the text says why."""


class Worker:
    """The process of one peer. Started at the first question, and again after it died."""

    def __init__(self, peer: str, options: argparse.Namespace):
        self.peer, self.options = peer, options
        self.python = ROOT / PEERS[peer].environment / "bin" / "python"
        self.versions: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, **request: Any) -> dict[str, Any]:
        """The worker's answer; raises `Failed` when it has none."""
        if not self.python.exists():
            raise Failed("not installed")
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._died()
        answer = self._answer()
        if "unsupported" in answer:
            raise Failed(f"not supported: {answer['unsupported']}")
        return answer

    def undisturbed(self, **request: Any) -> tuple[float, float]:
        """(milliseconds a step, share of the machine that others took meanwhile) of the calmest of some attempts.

        Libraries whose threads wait by spinning (OpenMP) fall behind tenfold when another process holds one of the cores.
        """
        attempts = []
        # A process that goes first is not held up, and what it leaves idle is no measure.
        for _ in range(1 if self.options.nice < 0 else ATTEMPTS):
            settle(self.options.quiet)
            clock, all_, mine = time.perf_counter(), busy(), busy(self.process)
            answer = self.ask(**request)
            available = (time.perf_counter() - clock) * os.cpu_count()
            others = busy() - all_ - (busy(self.process) - mine)
            attempts.append((others / available, answer["ms"]))
            if attempts[-1][0] < CALM:
                break
        share, milliseconds = min(attempts)
        return milliseconds, share

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _start(self) -> None:
        script = ROOT / "benchmarks" / "peers" / f"{self.peer}_worker.py"
        errors = None if self.options.verbose else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [self.python, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=self._limit,
        )
        self.versions = self._answer()

    def _limit(self) -> None:
        """Memory and priority, in the new process before it becomes the worker; its threads inherit both."""
        size = self.options.memory * 2**30
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
        os.nice(self.options.nice)
        # Linux may weigh sessions before processes: there only the priority of the session counts against other sessions.
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
            file.write(str(self.options.nice))

    def _answer(self) -> dict[str, Any]:
        # One line answers one question, so nothing is left in the buffer that `select` would not see.
        if not select.select([self.process.stdout], [], [], self.options.limit)[0]:
            self.stop()
            raise Failed(f"no answer within {self.options.limit:g} s")
        line = self.process.stdout.readline()
        return json.loads(line) if line else self._died()

    def _died(self) -> Any:
        code = self.process.wait()
        self.process = None
        raise Failed(f"its process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})")


def measure(
    workers: dict[str, Worker], model: str, options: argparse.Namespace
) -> tuple[dict[tuple[str, str], Any], float]:
    """(peer, variant) → milliseconds of each repeat, or the reason why there are none; and the largest share of others."""
    found: dict[tuple[str, str], Any] = {}
    disturbance = 0.0
    requests: dict[tuple[str, str], dict[str, Any]] = {}
    parameters: dict[str, int] = {}
    for peer, worker in workers.items():  # build, compile, warm up
        for variant in ["plain", *PEERS[peer].variants]:
            request = {"model": model, "variant": variant, "pool": options.steps, "steps": 1}
            try:
                worker.ask(**request)
                answer = worker.ask(**request)
                print(f"# {model} {peer} {variant}: {answer['ms']:.1f} ms at first", file=sys.stderr)
                request["steps"] = max(1, min(options.steps, int(1e3 * options.seconds / answer["ms"])))
                requests[peer, variant] = request
                parameters[peer] = answer["parameters"]
                found[peer, variant] = []
            except Failed as error:
                found[peer, variant] = str(error)
                print(f"# {model} {peer} {variant}: {error}", file=sys.stderr)
        if any(isinstance(found[peer, variant], str) for variant in PEERS[peer].variants):
            # The failure may have ended the process: its other variants are built again now, not in a timed repeat.
            for (other, _), request in requests.items():
                if other == peer:
                    worker.ask(**request)
    if len(set(parameters.values())) > 1:
        raise SystemExit(f"{model}: the peers do not train the same model, numbers of parameters {parameters}")
    for _ in range(options.repeats):
        for (peer, variant), times in found.items():
            if isinstance(times, list):
                try:
                    milliseconds, share = workers[peer].undisturbed(**requests[peer, variant])
                    times.append(milliseconds)
                    disturbance = max(disturbance, share)
                except Failed as error:
                    found[peer, variant] = str(error)
    return found, disturbance


def ratio(times: Any, base: Any) -> str:
    """Median over repeats of times / base; a dash without one of them."""
    if not (isinstance(times, list) and isinstance(base, list)):
        return "–"
    return f"{statistics.median(t / b for t, b in zip(times, base, strict=True)):.2f}"


def rows(label: str, found: dict[tuple[str, str], Any]) -> list[str]:
    """The table's lines of one model."""
    lines = []
    for (peer, variant), times in found.items():
        if variant == "plain":
            continue
        plain, own = found[peer, "plain"], found.get(OWN)
        cells = [f"{statistics.median(plain):.1f}" if isinstance(plain, list) else "–"]
        if isinstance(times, list):
            cells += [f"{statistics.median(times):.1f}", ratio(times, plain), ratio(times, own)]
        else:
            cells += [times.replace("|", "/"), "–", "–"]
        lines.append(f"| {label} | {PEERS[peer].variants[variant]} | {' | '.join(cells)} |")
    return lines


def machine() -> str:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        name = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    return f"{datetime.date.today()}, {name}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=16, help="steps timed at once, at most")
    parser.add_argument(
        "--seconds", type=float, default=1, help="of steps timed at once, about; never less than a step"
    )
    parser.add_argument("--markdown", help="append the table to this file")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one answer, else the worker is ended")
    parser.add_argument("--quiet", type=float, default=60, help="seconds to wait for an idle machine, per measurement")
    parser.add_argument("--memory", type=int, default=14, help="GiB of data a worker may have")
    parser.add_argument("--nice", type=int, default=0, help="of the workers; below 0 (root) on a busy machine")
    parser.add_argument("--verbose", action="store_true", help="show what the workers write to standard error")
    options = parser.parse_args()
    versions: dict[str, dict[str, str]] = {}
    disturbance = 0.0
    table = ["| model, batch | who | ms, its plain step | ms, private step | ratio to its plain | ratio to tfdpbc |"]
    table.append("|---|---|---|---|---|---|")
    for model in options.models.split(","):
        workers = {peer: Worker(peer, options) for peer in options.peers.split(",")}
        try:
            found, share = measure(workers, model, options)
        finally:
            for worker in workers.values():
                worker.stop()
        versions |= {peer: worker.versions for peer, worker in workers.items() if worker.versions}
        batch = {"resnet18_groupnorm": 32, "transformer": 64}.get(model, 256)
        table += rows(f"{model}, {batch}", found)
        disturbance = max(disturbance, share)
        print("\n".join(rows(f"{model}, {batch}", found)), flush=True)
    head = [f"{machine()}; {options.repeats} repeats of at most {options.steps} steps; "]
    if options.nice < 0:
        head[0] += f"a shared machine (load {os.getloadavg()[2]:.1f}), the measured process at priority {options.nice}."
    else:
        head[0] += f"other processes took at most {disturbance:.0%} of the CPU time during one of them."
    head += [", ".join(f"{package} {number}" for package, number in one.items()) for one in versions.values()]
    if options.markdown:
        with open(options.markdown, "a") as file:
            file.write("\n".join([*head[:1], "; ".join(head[1:]) + ".", "", *table]) + "\n\n")
    print("\n".join(head))


if __name__ == "__main__":
    main()
