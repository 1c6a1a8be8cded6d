"""Does to a run what can happen to it, on the GPU's machine, and writes down how it ended.  Standard library only.

    python drive.py BUNDLE OUT SEED [SCENARIO ...]

whole   nothing happens: what the others are held against
worker  the process of the rounds is killed from outside
disk    the disk fills up while kernels compile, and again during the rounds
killed  SIGKILL to the parent at twenty random moments, each followed by --resume; over as many runs as that takes
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLS = 20
KILL_AFTER_S = (3.0, 12.0)  # loading torch takes the first seconds of each
DISK_BYTES = 96 << 20
WAIT_S = 240.0


class Scenario:
    """One run to OUT/NAME.json.gz, in as many processes as it takes."""

    def __init__(self, bundle: Path, out: Path, name: str) -> None:
        self.bundle, self.name, self.out = bundle, name, out / f"{name}.json.gz"
        self.partial = self.out.with_name(self.out.name + ".partial")
        self.events: list[dict[str, Any]] = []
        self.kept: dict[int, dict[str, float]] = {}
        self.began = time.monotonic()

    def note(self, what: str, **more: Any) -> None:
        self.events.append({"at_s": round(time.monotonic() - self.began, 3), "what": what, **more})
        print(self.name, self.events[-1], flush=True)

    def start(self) -> subprocess.Popen[bytes]:
        resume = ["--resume"] if (self.partial / "journal.jsonl").exists() else []
        command = [sys.executable, str(self.bundle / "run.py"), "--out", str(self.out), "--limit-s", "300", *resume]
        return subprocess.Popen(command)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        code = process.wait(WAIT_S)
        self.note("exit", code=code, rounds=len(self.rounds()))
        return code

    def rounds(self) -> dict[int, dict[str, float]]:
        """The whole rounds in the journal."""
        path = self.partial / "lane-0.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        rows = [json.loads(line) for line in lines]
        return {r["round"]: r["samples_s"] for r in rows if "round" in r}

    def keep(self) -> None:
        """Remember what was measured, to look for it at the end."""
        self.kept |= self.rounds()

    def wait_for(self, done: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
        """False where the process ended first."""
        while not done():
            if process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def summary(self) -> dict[str, Any]:
        return {"events": self.events, "rounds_kept": len(self.kept), "samples_lost": self.lost()}

    def lost(self) -> list[str]:
        """Samples that stood in the journal when something happened, and are not in the result as they were."""
        timings = {
            t["candidate"]: t["samples_s"] for t in json.loads(gzip.decompress(self.out.read_bytes()))["timings"]
        }
        return [
            f"{slot} round {number}"
            for number, row in self.kept.items()
            for slot, seconds in row.items()
            if not slot.startswith("bad-") and timings[slot][number] != seconds
        ]


def whole(run: Scenario) -> None:
    run.end(run.start())


def worker(run: Scenario) -> None:
    process = run.start()
    run.wait_for(lambda: len(run.rounds()) > 30, process)
    run.keep()
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
        run.note("killed the process of the rounds")
    run.end(process)


def disk(run: Scenario) -> None:
    folder = run.out.parent
    filler = folder / "filler"
    _fill(filler, folder, 2 << 20)  # the first kernels still find room
    run.note("full from the start", code=run.end(run.start()))
    filler.unlink()
    process = run.start()
    run.wait_for(lambda: len(run.rounds()) > 30, process)
    _fill(filler, folder, 0)
    run.note("full during the rounds", code=run.end(process))
    run.keep()
    filler.unlink()
    run.end(run.start())


def _fill(path: Path, folder: Path, leave_bytes: int) -> None:
    """Write until the disk has no more than so much room."""
    with path.open("wb", buffering=0) as file:
        try:
            while (room := shutil.disk_usage(folder).free - leave_bytes) > 0:
                file.write(b"\0" * min(room, 1 << 20))
        except OSError:
            return


def killed(run: Scenario, moments: random.Random, left: int) -> int:
    """Kill a run until it is done or has been killed `left` times; how often it was."""
    kills = 0
    while kills < left:
        process = run.start()
        after_s = moments.uniform(*KILL_AFTER_S)
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            run.keep()
            kills += 1
            run.note("SIGKILL", after_s=round(after_s, 3), rounds=len(run.rounds()))
            continue
        run.note("ended before it was killed", code=process.returncode)
        break
    while run.partial.exists():
        run.end(run.start())
    return kills


def state(path: Path) -> dict[str, Any]:
    """What has to be the same, however a run went: status, gates, number of samples."""
    timings = json.loads(gzip.decompress(path.read_bytes()))["timings"]
    return {
        t["candidate"]: [t["status"], [[g["gate"], g["passed"]] for g in t["gates"]], len(t["samples_s"])]
        for t in timings
    }


def main(bundle: Path, out: Path, seed: int, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"seed": seed, "scenarios": {}}

    def done(run: Scenario) -> None:
        found["scenarios"][run.name] = run.summary()
        (out / "faults.json").write_text(json.dumps(found, indent=1) + "\n")
        print(run.name, "lost:", run.lost(), state(run.out), flush=True)

    for name, play in (("whole", whole), ("worker", worker)):
        if name in names:
            run = Scenario(bundle, out, name)
            play(run)
            done(run)
    if "disk" in names:
        small = Path("/tmp/small-disk")
        small.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(small)], check=True)
        run = Scenario(bundle, small, "disk")
        disk(run)
        done(run)
        shutil.copy(run.out, out / run.out.name)
    left, moments = KILLS if "killed" in names else 0, random.Random(seed)
    while left:
        run = Scenario(bundle, out, f"killed-{len(found['scenarios'])}")
        left -= killed(run, moments, left)
        done(run)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or ["whole", "worker", "disk", "killed"])
