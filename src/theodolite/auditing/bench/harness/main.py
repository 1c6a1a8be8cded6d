"""The command line of a bundle, and the whole of a run: compile all, each candidate alone, survivors interleaved.

Whatever happens, the run ends within its limit and writes what it has: every candidate with a status.  All that it
finds out stands, as it comes, in a journal beside the result file; `--resume` goes on from there after a kill, a
signal, a full disk or the time limit.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from . import environment
from .device import Device
from .journal import Journal, whole_rows
from .known import Known, Options, began_row
from .lane import Lane, plan_lanes, run_lanes
from .phases import Bench, DiskFull, Refused, compile_all, count_gpus, draw_inputs, isolate_all
from .record import result, write_result
from .spec import Bundle, read_bundle

PARTIAL = ".partial"
JOURNAL = "journal.jsonl"
LOCK_WAIT_S = 20.0  # for the children of a run that was killed to be gone
MEASURED, INCOMPLETE, REFUSED, DISK_FULL = 0, 1, 2, 3


class Stop(BaseException):
    """SIGTERM or SIGINT: write what there is and go."""


def main(folder: Path, arguments: list[str]) -> int:
    """The command line.

    0 where every candidate asked for has samples, 1 where some have none, 2 for a bad call, 3 where the disk is full.
    """
    given = parser().parse_args(arguments)
    try:
        bundle = read_bundle(folder)
    except (OSError, KeyError, ValueError, TypeError) as error:
        print(f"refused: the bundle cannot be read ({error!r}): write it again", file=sys.stderr)
        return REFUSED
    try:
        options = asked(given, bundle)
        work = partial_folder(given.out, given.resume)
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED
    os.environ["TRITON_CACHE_DIR"] = str(work / "cache")  # before triton is imported, so that nothing is reused
    try:
        from .torch_device import TorchDevice

        return run(bundle, TorchDevice(bundle), given.out, given.limit_s, options, work)
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED
    finally:
        if not found_out(work):
            shutil.rmtree(work, ignore_errors=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="run.py", description="Measure every candidate of this bundle.")
    add = found.add_argument
    add("--out", type=Path, default=Path("results.json.gz"))
    add("--limit-s", type=float, default=3000.0, help="end by itself within so many seconds")
    add("--resume", action="store_true", help="go on with the run to --out that was interrupted, as it was asked for")
    add("--rounds", type=int, default=None, help="rounds of each candidate (default: as frozen)")
    add("--only", action="append", default=[], metavar="ID", help="measure this candidate alone")
    add("--l2", choices=("cold", "warm"), default="cold", help="flush the L2 before each sample, or run once before it")
    add("--again", choices=("first", "all"), default="first", help="time a case's first candidate twice, or each one")
    add("--joules", action="store_true", help="the energy of each candidate as well (about two seconds each)")
    return found


def asked(given: argparse.Namespace, bundle: Bundle) -> Options | None:
    """The options of a new run, None for one that is resumed and keeps its own; Refused for a bad one."""
    options = Options(given.rounds, tuple(given.only), given.l2, given.again, given.joules)
    if given.resume:
        if options != Options():
            raise Refused("--resume goes on with what was asked for: give nothing else but --out and --limit-s")
        return None
    if unknown := set(given.only) - {c.id for c in bundle.candidates}:
        raise Refused(f"no candidate {', '.join(sorted(unknown))}: manifest.json names them")
    if given.rounds is not None and given.rounds < 1:
        raise Refused(f"--rounds {given.rounds}: give at least 1")
    return options


def partial_folder(out: Path, resume: bool) -> Path:
    """Where a run to `out` keeps what it finds out; Refused where that is not as `resume` says."""
    folder = out.with_name(out.name + PARTIAL)
    begun = (folder / JOURNAL).exists()
    if resume and not begun:
        done = f"{out} is complete" if out.exists() else f"no run to {out} was interrupted"
        raise Refused(f"nothing to resume: {done}")
    if not resume and begun:
        raise Refused(f"a run to {out} was interrupted: go on with --resume, or remove {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}") from error
    return folder.resolve()


def found_out(work: Path) -> bool:
    """Whether a run's journal holds more than that it began."""
    return any("began" not in row for row in whole_rows(work / JOURNAL))


def run(bundle: Bundle, device: Device, out: Path, limit_s: float, options: Options | None, work: Path) -> int:
    """A run of a bundle on one device, new or (without `options`) resumed; the exit code of `main`."""
    whole = None
    try:
        with _locked(work):
            whole = Run(bundle, device, out, limit_s, options, work)
            code = whole.whole()
    except (DiskFull, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise
        print(f"the disk of {work} is full ({error}): make room, then --resume", file=sys.stderr)
        return DISK_FULL
    if whole.complete():
        shutil.rmtree(work, ignore_errors=True)
    else:
        print(f"not all was done: --resume goes on from {work}", flush=True)
    return code


def _locked(work: Path) -> TextIO:
    """The folder for this process and its children alone; Refused where others have it for long."""
    file = (work / "lock").open("w")
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > until:
                file.close()
                raise Refused(f"another process is measuring into {work}: wait for it or stop it") from None
            time.sleep(0.1)


class Run:
    """One run of a bundle, from its journal to its result file."""

    def __init__(
        self, bundle: Bundle, device: Device, out: Path, limit_s: float, options: Options | None, work: Path
    ) -> None:
        self.out, self.known = out, Known.of(bundle)
        frozen = hashlib.sha256((bundle.folder / "frozen.json").read_bytes()).hexdigest()
        rows = whole_rows(work / JOURNAL)
        if options is None:
            if not rows or rows[0]["bundle"] != frozen:
                raise Refused(f"{work} is of another bundle: resume with that one")
            options = Options(**{**rows[0]["options"], "only": tuple(rows[0]["options"]["only"])})
        for row in rows:
            self.known.hear(row)
        self.journal = Journal(work / JOURNAL)
        bundle = with_rounds(bundle, options.rounds)
        self.bench = Bench(device, bundle, options, work, self.known, self.tell, time.monotonic(), limit_s)
        self.environment: dict[str, Any] = {"bundle": frozen}
        self.lanes: list[Lane] = []
        for candidate in bundle.candidates:
            if not candidate.passed:
                self.known.outcomes[candidate.id].fail("gate-failed", "a gate before the freeze did not pass: not run")
            elif options.only and candidate.id not in options.only:
                self.known.outcomes[candidate.id].fail("not-asked-for", "left out by --only")
        self.asked = [c.id for c in bundle.candidates if c.passed and (not options.only or c.id in options.only)]

    def tell(self, row: Mapping[str, Any]) -> None:
        """Write a row down, then know it."""
        self.journal.add(row)
        self.known.hear(row)

    def whole(self) -> int:
        """All phases and the result file; 0 where all that was asked for is "ok"."""
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, _stop)
        bench = self.bench
        try:
            self.tell(began_row(time.time(), bench.options, self.environment["bundle"], environment.reading()))
            bench = self.bench = replace(bench, gpus=count_gpus(bench.device))
            compile_all(bench)
            draw_inputs(bench)
            isolate_all(bench)
            self.interleave()
        except Stop:
            self.environment["stopped"] = "by a signal"
            bench.say("stopped by a signal; writing what there is")
        finally:
            for lane in self.lanes:
                lane.close()
        for number in (signal.SIGTERM, signal.SIGINT):  # what there is shall be written whole
            signal.signal(number, signal.SIG_IGN)
        record = self.record()
        write_result(self.out, record)
        status = {t["candidate"]: t["status"] for t in record["timings"]}
        good = [name for name in self.asked if status[name] == "ok"]
        bench.say(f"{len(good)} of {len(self.asked)} candidates measured")
        return MEASURED if len(good) == len(self.asked) else INCOMPLETE

    def interleave(self) -> None:
        """The rounds; planned once, of those that had their isolated run by then."""
        bench, known = self.bench, self.known
        if known.lanes is None:
            late = [n for n in known.alive() if n not in known.isolated]
            if late and len(late) == len(known.alive()):
                return  # there is nothing to begin with: a resumed run shall have them all
            for name in late:
                bench.fail(name, "not-reached", "the time limit came before its isolated run")
            bench.tell({"lanes": plan_lanes(bench)})
        assert known.lanes is not None
        if len(known.lanes) > bench.gpus:
            raise Refused(f"this run was spread over {len(known.lanes)} GPUs, and here are {bench.gpus}")
        self.lanes = [Lane(bench, number, counts) for number, counts in enumerate(known.lanes)]
        run_lanes(bench, self.lanes)

    def complete(self) -> bool:
        """Whether a resumed run would find nothing left to do."""
        return self.known.lanes is not None and all(lane.nothing_left() for lane in self.lanes)

    def record(self) -> dict[str, Any]:
        """The Samples record of what is known now."""
        found = self.environment | self._about_run()
        joules: dict[str, dict[str, float]] = {}
        again: dict[str, dict[int, float]] = {}
        for lane in self.lanes:
            lane.into(self.known.outcomes, again, joules)
        return result(self.bench.bundle, self.known.outcomes, again, joules, found)

    def _about_run(self) -> dict[str, Any]:
        bench, known = self.bench, self.known
        after = environment.reading()
        looks = [known.before, *known.readings, after]
        counts = {s: n for lane in self.lanes for s, n in lane.counts.items()}
        found = {
            "started_unix_s": known.starts[0],
            "resumed": len(known.starts) - 1,
            "duration_s": time.monotonic() - bench.started,
            "limit_s": bench.limit_s,
            "protocol": dict(bench.protocol),
            "l2": bench.options.l2,
            "again": bench.options.again,
            "gpus": bench.gpus,
            "inputs": ", ".join(sorted(set(known.inputs.values()))),
            "before": known.before,
            "during": environment.summary(known.readings),
            "after": after,
            "exclusive": environment.exclusive(looks),
            "compiler": bench.device.compiler(),
            "slots": list(counts),
            "rounds": {s: n for s, n in counts.items() if n != int(bench.protocol["rounds"])},
        }
        return found | about_lanes(bench, self.lanes)


def about_lanes(bench: Bench, lanes: list[Lane]) -> dict[str, Any]:
    """What the lanes found their GPUs to be; the first one's stands for all, the others' in "devices"."""
    said = [lane.said() for lane in lanes]
    devices = [dict(s.devices[-1]) if s.devices else {} for s in said]
    ticks = [environment.event_tick_s(d.pop("tick_samples_s", [])) for d in devices]
    deaths = sum(bench.known.unexplained.values())
    unfinished = [lane.unfinished for lane in lanes if lane.unfinished]
    return {
        "device": devices[0] if devices else {},
        "event_tick_s": None if not ticks or None in ticks else max(t for t in ticks if t is not None),
        "rounds_done": max((s.next_round for s in said), default=0),
        "rounds_repeated": sum(s.repeated for s in said),
        "dry_samples": sum(s.dry for s in said),
        **({"devices": devices} if len(devices) > 1 else {}),
        **({"unexplained_deaths": deaths} if deaths else {}),
        **({"unfinished": "; ".join(unfinished)} if unfinished else {}),
    }


def with_rounds(bundle: Bundle, rounds: int | None) -> Bundle:
    """The bundle with another number of rounds."""
    if rounds is None:
        return bundle
    least = min(rounds, int(bundle.config.protocol["least_rounds"]))
    protocol = {**bundle.config.protocol, "rounds": rounds, "least_rounds": least}
    return replace(bundle, config=replace(bundle.config, protocol=protocol))


def _stop(number: int, frame: object) -> None:
    raise Stop
