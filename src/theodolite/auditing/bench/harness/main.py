"""The command line of a bundle, and the whole of a run: compile all, each candidate alone, survivors interleaved.

Whatever happens, the run ends within its limit and writes what it has: every candidate with a status.  All that it
finds out stands, as it comes, in a journal beside the result file; `--resume` goes on from there after a kill, a
signal, a full disk or the time limit.
"""

from __future__ import annotations

import argparse
import copy
import errno
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import environment, folder
from .device import Device
from .journal import Corrupt, Journal, whole_rows
from .known import Known, Options, began_row
from .lane import Lane, plan_lanes, run_lanes
from .phases import Bench, DiskFull, Refused, compile_all, count_gpus, draw_inputs, isolate_all
from .record import result, write_result
from .spec import Bundle, read_bundle

MEASURED, INCOMPLETE, REFUSED, DISK_FULL = 0, 1, 2, 3
FULL = (errno.ENOSPC, errno.EDQUOT)


class Stop(BaseException):
    """SIGTERM or SIGINT: write what there is and go."""


def main(here: Path, arguments: list[str]) -> int:
    """The command line.

    0 where everything asked for was measured, 1 where some of it was not, 2 for a bad call, 3 where the disk is full.
    """
    given = parser().parse_args(arguments)
    try:
        bundle = read_bundle(here)
    except (OSError, KeyError, ValueError, TypeError) as error:
        print(f"refused: the bundle cannot be read ({error!r}): write it again", file=sys.stderr)
        return REFUSED

    def device(work: Path) -> Device:
        os.environ["TRITON_CACHE_DIR"] = str(work / "cache")  # before triton is imported, so that nothing is reused
        from .torch_device import TorchDevice

        return TorchDevice(bundle)

    try:
        return run(bundle, device, given.out, given.limit_s, asked(given, bundle))
    except (Refused, Corrupt) as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:  # before there was anything to write
        print("stopped before anything was measured", file=sys.stderr)
        return INCOMPLETE


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="run.py", description="Measure every candidate of this bundle.")
    add = found.add_argument
    add("--out", type=Path, default=Path("results.json.gz"))
    add("--limit-s", type=float, default=3000.0, help="end by itself within so many seconds")
    add("--resume", action="store_true", help="go on with the run to --out that was interrupted, as it was asked for")
    add("--rounds", type=int, default=None, help="rounds of each candidate (default: as frozen)")
    add("--only", action="append", default=[], metavar="ID", help="measure this candidate alone")
    add("--l2", choices=("cold", "warm"), default="cold", help="flush the L2 before each sample, or run once before it")
    add("--again", choices=("some", "all"), default="some", help="time two candidates of a case twice, or each one")
    add("--joules", action="store_true", help="the energy of each candidate as well (about two seconds each)")
    return found


def asked(given: argparse.Namespace, bundle: Bundle) -> Options | None:
    """The options of a new run, None for one that is resumed and keeps its own; Refused for a bad one."""
    options = Options(given.rounds, tuple(given.only), given.l2, given.again, given.joules)
    if not given.limit_s > 0:
        raise Refused(f"--limit-s {given.limit_s}: give some seconds")
    if given.resume:
        if options != Options():
            raise Refused("--resume goes on with what was asked for: give nothing else but --out and --limit-s")
        return None
    passed = {c.id: c.passed for c in bundle.candidates}
    if unknown := set(given.only) - set(passed):
        raise Refused(f"no candidate {', '.join(sorted(unknown))}: manifest.json names them")
    if failed := [n for n in given.only if not passed[n]]:
        raise Refused(f"{', '.join(failed)} did not pass the gates before the freeze, and is not run")
    if given.rounds is not None and given.rounds < 1:
        raise Refused(f"--rounds {given.rounds}: give at least 1")
    return options


def run(bundle: Bundle, device: Callable[[Path], Device], out: Path, limit_s: float, options: Options | None) -> int:
    """A run of a bundle to `out`, new or (without `options`) resumed; the exit code of `main`.

    `device` makes the device, given the run's folder.  Raises Refused or Corrupt where nothing can be run.
    """
    with folder.held(out) as work:
        try:
            if options is None:
                folder.resume(work, out)
            else:
                folder.begin(work, out)
            whole = Run(bundle, device(work), out, limit_s, options, work)
            code = whole.whole()
            if whole.complete():
                folder.remove(work)
            elif folder.found_out(work):
                print(f"not all was done: --resume goes on from {work}", flush=True)
            return code
        except (DiskFull, OSError) as error:
            if isinstance(error, OSError) and error.errno not in FULL:
                raise
            then = "then --resume" if folder.found_out(work) else "then begin again"
            print(f"the disk of {work} is full ({error}): make room, {then}", file=sys.stderr)
            return DISK_FULL
        finally:
            if work.exists() and _nothing_in(work):
                folder.remove(work)


def _nothing_in(work: Path) -> bool:
    try:
        return not folder.found_out(work)
    except Corrupt:
        return False


class Run:
    """One run of a bundle, from its journal to its result file."""

    def __init__(
        self, bundle: Bundle, device: Device, out: Path, limit_s: float, options: Options | None, work: Path
    ) -> None:
        self.out, self.known = out, Known.of(bundle)
        frozen = hashlib.sha256((bundle.folder / "frozen.json").read_bytes()).hexdigest()
        rows = whole_rows(work / folder.JOURNAL)
        if options is None:
            if rows[0].get("bundle") != frozen:
                raise Refused(f"{work} is of another bundle: resume with that one")
            options = Options(**{**rows[0]["options"], "only": tuple(rows[0]["options"]["only"])})
        try:
            for row in rows:
                self.known.hear(row)
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"{work / folder.JOURNAL} holds a row that nobody writes ({error!r})") from error
        self.journal = Journal(work / folder.JOURNAL)
        bundle = with_rounds(bundle, options.rounds)
        self.bench = Bench(device, bundle, options, work, self.known, self.tell, time.monotonic(), limit_s)
        self.environment: dict[str, Any] = {"bundle": frozen}
        self.lanes: list[Lane] = []
        self.signals = 0
        self.bench.stop.unlink(missing_ok=True)
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
        """All phases and the result file; 0 where everything asked for was measured."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            gpus = count_gpus(self.bench.device)
            bench = self.bench = replace(self.bench, gpus=gpus)
            before = [environment.reading(gpu) for gpu in range(gpus)]
            self.tell(began_row(time.time(), bench.options, self.environment["bundle"], before))
            compile_all(bench)
            draw_inputs(bench)
            isolate_all(bench)
            self.interleave()
        except Stop:
            self.environment["stopped"] = "by a signal"
            self.wind_down()
        finally:
            for lane in self.lanes:
                lane.close()
        for number in (signal.SIGTERM, signal.SIGINT):  # what there is shall be written whole
            signal.signal(number, signal.SIG_IGN)
        if not folder.found_out(self.bench.work):
            self.bench.say("nothing was found out: there is no result")
            return INCOMPLETE
        record = self.record()
        write_result(self.out, record)
        timings = {t["candidate"]: t for t in record["timings"]}
        good = [name for name in self.asked if timings[name]["status"] == "ok"]
        unread = [n for n in good if self.bench.options.joules and "joules" not in timings[n].get("energy", {})]
        self.bench.say(f"{len(good)} of {len(self.asked)} candidates measured")
        if unread:
            self.bench.say(f"the energy of {len(unread)} was not read: {timings[unread[0]].get('energy')}")
        everything = len(good) == len(self.asked) and not unread and self.complete()
        return MEASURED if everything else INCOMPLETE

    def _stop(self, number: int, frame: object) -> None:
        """The first signal stops the run, a second one the waiting for its last look."""
        self.signals += 1
        if self.signals == 1:
            raise Stop

    def wind_down(self) -> None:
        """No further round; the outputs are looked at once more, if that takes no longer than the grace."""
        self.bench.say("stopped by a signal; a last look at the outputs, then the result")
        self.bench.stop.touch()
        until = time.monotonic() + self.bench.protocol["stop_grace_s"]
        while not all(lane.wind_down() for lane in self.lanes):
            if time.monotonic() > until or self.signals > 1:
                return
            time.sleep(0.02)

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
        """The Samples record of what is known now; what it says of a run that was cut short is not known for good."""
        found = self.environment | self._about_run()
        outcomes = copy.deepcopy(self.known.outcomes)
        energy: dict[str, dict[str, Any]] = {}
        again: dict[str, dict[int, float]] = {}
        for lane in self.lanes:
            lane.into(outcomes, again, energy)
        return result(self.bench.bundle, outcomes, again, energy, found)

    def _about_run(self) -> dict[str, Any]:
        bench, known = self.bench, self.known
        afters = [environment.reading(gpu) for gpu in range(bench.gpus)]
        looks = [*known.befores, *known.readings, *afters]
        counts = {s: n for lane in self.lanes for s, n in lane.counts.items()}
        found = {
            "started_unix_s": known.starts[0] if known.starts else None,
            "resumed": max(0, len(known.starts) - 1),
            "duration_s": time.monotonic() - bench.started,
            "limit_s": bench.limit_s,
            "protocol": dict(bench.protocol),
            "l2": bench.options.l2,
            "again": bench.options.again,
            "gpus": bench.gpus,
            "inputs": ", ".join(sorted(set(known.inputs.values()))),
            "before": known.befores[0] if known.befores else {},
            "during": environment.summary(known.readings),
            "after": afters[0],
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
