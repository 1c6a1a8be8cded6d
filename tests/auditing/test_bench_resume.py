"""A run that is stopped in any way goes on where it was, to the end that it would have come to."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.auditing.fake_device import OUT, FakeDevice, by_name, frozen, measured, run_here
from theodolite.auditing.bench.bundle import read_results
from theodolite.auditing.bench.harness import environment, folder, phases
from theodolite.auditing.bench.harness.energy import EnergyUnread
from theodolite.auditing.bench.harness.journal import Corrupt, Journal, Tail, whole_rows
from theodolite.auditing.bench.harness.known import Options
from theodolite.auditing.bench.harness.main import DISK_FULL, INCOMPLETE, MEASURED
from theodolite.auditing.bench.harness.phases import Refused
from theodolite.auditing.manifest import Samples

NAMES = ("good", "crashes", "illegal", "no-graph", "dies-later", "nan", "fine", "b.good", "slow")
PARTIAL = OUT + ".partial"
KILLS = 20

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.auditing.fake_device import FakeDevice, run_here
from theodolite.auditing.bench.harness.known import Options
folder = Path({folder!r})
options = None if (folder / {partial!r} / "journal.jsonl").exists() else Options()
print("ready", flush=True)
raise SystemExit(run_here(folder, FakeDevice(folder, pace_s=0.01), options=options))
"""


def started(folder: Path) -> subprocess.Popen[str]:
    """The run of folder's bundle as a process, begun or resumed; back when its interpreter is ready."""
    text = SCRIPT.format(root=str(Path(__file__).parents[2]), folder=str(folder), partial=PARTIAL)
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def state(samples: Samples) -> dict[str, Any]:
    """What has to be the same however often a run was interrupted; of an offender, not how far it had come."""
    return {
        t.candidate: (t.status, [(g.gate, g.passed) for g in t.gates], len(t.samples_s) if t.status == "ok" else None)
        for t in samples.timings
    } | {"rounds": samples.environment["rounds"], "slots": samples.environment["slots"]}


def kept_rounds(folder: Path) -> dict[int, dict[str, float]]:
    """The rounds that stand in an interrupted run's journal."""
    return {r["round"]: r["samples_s"] for r in whole_rows(folder / PARTIAL / "lane-0.jsonl") if "round" in r}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return state(measured(folder, NAMES))


@pytest.mark.parametrize("number", range(KILLS))
def test_sigkill_at_a_random_moment_loses_nothing(tmp_path: Path, number: int, uninterrupted: dict[str, Any]) -> None:
    manifest = frozen(tmp_path, NAMES)
    process = started(tmp_path)
    time.sleep(random.Random(number).uniform(0.0, 2.5))
    process.kill()
    process.wait()
    kept = kept_rounds(tmp_path)
    while (tmp_path / PARTIAL).exists():
        again = started(tmp_path)
        said = again.communicate()[0]
        assert again.returncode in (MEASURED, INCOMPLETE), said
    samples = read_results(tmp_path / OUT, manifest)
    assert state(samples) == uninterrupted
    timings = by_name(samples)
    for round_number, row in kept.items():
        for slot in ("good", "good#again", "fine", "b.good", "b.good#again"):
            assert timings[slot].samples_s[round_number] == row[slot], "a sample that was taken is still there"


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    frozen(tmp_path, ["hangs"])
    process = started(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 20
    while not (found := children.read_text().split()) and time.monotonic() < until:
        time.sleep(0.01)
    assert found, "no child was ever seen"
    process.kill()
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in found) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


# ---- a full disk -------------------------------------------------------------------------------------------------
class SmallDisk:
    """A file on a disk with room for so many bytes more, in all of its files together and in every process."""

    def __init__(self, file: Any, path: Path, limit: int) -> None:
        self.file, self.path, self.limit = file, path, limit

    def write(self, data: bytes) -> int:
        room = self.limit - sum(p.stat().st_size for p in self.path.parent.glob("*.jsonl"))
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.file.write(data[:room]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limits how much all journals may hold together, in bytes."""
    limit, begin = [0], Journal.__init__

    def init(self: Journal, path: Path) -> None:
        begin(self, path)
        self._file = SmallDisk(self._file, path, limit[0])  # type: ignore[assignment]

    monkeypatch.setattr(Journal, "__init__", init)
    return limit


@pytest.mark.parametrize("room", [10, 1000, 3000, 4400, 6000, 8000])
def test_a_full_disk_is_nobodys_fault(
    tmp_path: Path, small_disk: list[int], room: int, uninterrupted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = frozen(tmp_path, NAMES)
    small_disk[0] = room
    assert run_here(tmp_path, FakeDevice(tmp_path), options=Options()) == DISK_FULL
    assert "is full" in capsys.readouterr().err
    assert not (tmp_path / OUT).exists()
    kept = kept_rounds(tmp_path)
    small_disk[0] = 1 << 30
    begun = (tmp_path / PARTIAL).exists()  # or else not even the first row had room
    run_here(tmp_path, FakeDevice(tmp_path), options=None if begun else Options())
    samples = read_results(tmp_path / OUT, manifest)
    assert state(samples) == uninterrupted
    assert all(by_name(samples)["good"].samples_s[n] == row["good"] for n, row in kept.items())


def test_the_disk_tests_do_run_out_during_the_rounds(tmp_path: Path, small_disk: list[int]) -> None:
    frozen(tmp_path, NAMES)
    small_disk[0] = 8000
    run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    assert 0 < len(kept_rounds(tmp_path)) < 30


# ---- what a journal is -------------------------------------------------------------------------------------------
def test_a_torn_row_is_not_read_and_not_built_upon(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Journal(path).add({"a": 1})
    tail = Tail(path)
    assert tail.rows() == [{"a": 1}]
    with path.open("a") as file:
        file.write('{"torn": ')
    assert whole_rows(path) == [{"a": 1}]
    assert tail.rows() == []
    Journal(path).add({"b": 2})
    assert tail.rows() == [{"b": 2}]
    assert whole_rows(path) == [{"a": 1}, {"b": 2}]


# ---- resuming ----------------------------------------------------------------------------------------------------
def test_a_signal_leaves_a_result_and_the_rest_can_follow(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["good", "kills"])
    assert run_here(tmp_path, FakeDevice(tmp_path), options=Options()) == INCOMPLETE
    before = by_name(read_results(tmp_path / OUT, manifest))["good"].samples_s
    device = FakeDevice(tmp_path)
    device.number = 100  # past its planted signal
    assert run_here(tmp_path, device) == MEASURED
    samples = read_results(tmp_path / OUT, manifest)
    after = by_name(samples)["good"].samples_s
    assert (len(before), len(after)) == (1, 30)
    assert after[:1] == before
    assert samples.environment["resumed"] == 1
    assert not (tmp_path / PARTIAL).exists()


def test_a_limit_is_made_good_by_a_resume(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["hangs", "good"])
    run_here(tmp_path, FakeDevice(tmp_path), limit_s=0.8, options=Options())
    assert {t.status for t in read_results(tmp_path / OUT, manifest).timings} == {"not-reached"}
    assert run_here(tmp_path, FakeDevice(tmp_path)) == INCOMPLETE
    samples = read_results(tmp_path / OUT, manifest)
    assert {t.candidate: t.status for t in samples.timings} == {"hangs": "timeout", "good": "ok", "good#again": "ok"}
    assert samples.environment["resumed"] == 1


def test_resume_and_a_new_run_are_not_confused(tmp_path: Path) -> None:
    frozen(tmp_path, ["good", "kills"])
    with pytest.raises(Refused, match=r"no run to .* was interrupted"):
        run_here(tmp_path, FakeDevice(tmp_path))
    run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    with pytest.raises(Refused, match="go on with --resume"):
        run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    (tmp_path / "bundle" / "frozen.json").write_text("{}")
    with pytest.raises(Refused, match="another bundle"):
        run_here(tmp_path, FakeDevice(tmp_path))


def test_a_complete_run_is_not_resumed(tmp_path: Path) -> None:
    measured(tmp_path, ["good"])
    with pytest.raises(Refused, match="is complete"):
        run_here(tmp_path, FakeDevice(tmp_path))


def test_a_run_of_which_nothing_is_left_is_complete(tmp_path: Path) -> None:
    frozen(tmp_path, ["crashes", "illegal"])
    assert run_here(tmp_path, FakeDevice(tmp_path), options=Options()) == INCOMPLETE
    assert not (tmp_path / PARTIAL).exists()


def test_a_refusal_leaves_nothing_to_resume(tmp_path: Path) -> None:
    """As on a machine without torch or without a GPU: the next call is a first one."""
    frozen(tmp_path, ["good"])
    for name in ("manifest.json", "frozen.json"):
        assert (tmp_path / "bundle" / name).exists()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "bundle" / "run.py"), "--out", str(tmp_path / OUT)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("refused: ")
        assert "interrupted" not in done.stderr
        assert not (tmp_path / PARTIAL).exists()


# ---- what may not happen ------------------------------------------------------------------------------------------
class Busy:
    """What NVML says of others, look by look; the last answer stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
        self.answers = list(answers)
        monkeypatch.setattr(environment, "_nvml", self.look)
        monkeypatch.setattr(phases, "OTHERS_LIMIT_S", 0.0)

    def look(self, name: str) -> dict[str, Any]:
        return {"processes": self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]}


def test_a_gpu_in_use_leaves_nothing_behind_and_taints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = frozen(tmp_path, ["good"])
    Busy(monkeypatch, 1)
    with pytest.raises(Refused, match="1 other processes use GPU 0"):
        run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    assert not (tmp_path / PARTIAL).exists()
    Busy(monkeypatch, 0, 0, 1, 0)  # free when asked, free before; its own process meanwhile; free after
    assert run_here(tmp_path, FakeDevice(tmp_path), options=Options()) == MEASURED
    assert read_results(tmp_path / OUT, manifest).environment["exclusive"] is True


class Decays(FakeDevice):
    """Its outputs go wrong after some rounds."""

    def compare(self, candidate: Any, input_set: str) -> dict[str, float]:
        wrong = candidate.id == "fine" and self.number and len(kept_rounds(self.folder)) > 20
        return {**super().compare(candidate, input_set), **({"elementwise": 9.0} if wrong else {})}


def test_the_last_look_comes_after_the_last_round(tmp_path: Path) -> None:
    """One that was cut short looked at the outputs, and one that goes on looks again."""
    manifest = frozen(tmp_path, ["good", "fine"])
    run_here(tmp_path, Decays(tmp_path, pace_s=0.25), limit_s=4.0, options=Options())
    cut = by_name(read_results(tmp_path / OUT, manifest))
    assert 0 < len(cut["fine"].samples_s) < 20
    assert cut["fine"].status == "ok"
    assert run_here(tmp_path, Decays(tmp_path)) == INCOMPLETE
    whole = by_name(read_results(tmp_path / OUT, manifest))
    assert (whole["fine"].status, whole["good"].status) == ("numerics", "ok")


def test_a_result_is_not_overwritten_by_a_new_run(tmp_path: Path) -> None:
    measured(tmp_path, ["good"])
    before = (tmp_path / OUT).read_bytes()
    with pytest.raises(Refused, match="holds a result"):
        run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    assert (tmp_path / OUT).read_bytes() == before
    assert not (tmp_path / PARTIAL).exists()


def test_two_runs_into_one_file_do_not_mix(tmp_path: Path) -> None:
    """The second begins while the first loads; the first dies; the second finds a run that is not its own."""
    frozen(tmp_path, ["good", "fine"])
    first = started(tmp_path)
    while not kept_rounds(tmp_path) and first.poll() is None:
        time.sleep(0.01)
    second = threading.Timer(0.3, first.kill)
    second.start()
    with pytest.raises(Refused, match="go on with --resume"):
        run_here(tmp_path, FakeDevice(tmp_path), options=Options(rounds=5, l2="warm"))
    first.wait()


def test_a_folder_is_gone_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen(tmp_path, ["good"])
    monkeypatch.setattr(folder.shutil, "rmtree", lambda *a, **k: None)  # killed before anything is deleted
    run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    assert not (tmp_path / PARTIAL).exists()
    monkeypatch.undo()
    with pytest.raises(Refused, match="is complete"):
        run_here(tmp_path, FakeDevice(tmp_path))


def test_a_journal_of_nothing_but_a_beginning_is_no_dead_end(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["good"])
    (tmp_path / PARTIAL).mkdir()
    (tmp_path / PARTIAL / "journal.jsonl").touch()
    (tmp_path / PARTIAL / "lane-0.jsonl").write_text('{"round": 0, "samples_s": {"good": 1.0}}\n')
    assert run_here(tmp_path, FakeDevice(tmp_path), options=Options()) == MEASURED
    assert 1.0 not in by_name(read_results(tmp_path / OUT, manifest))["good"].samples_s


def test_a_corrupt_row_is_refused_in_one_line(tmp_path: Path) -> None:
    frozen(tmp_path, ["good", "kills"])
    run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    path = tmp_path / PARTIAL / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{]\n", *lines[1:]]))
    with pytest.raises(Corrupt, match="no JSON"):
        run_here(tmp_path, FakeDevice(tmp_path))
    path.write_bytes(b"".join([lines[0], b'{"other": 1}\n', *lines[1:]]))
    with pytest.raises(Corrupt, match="nobody writes"):
        run_here(tmp_path, FakeDevice(tmp_path))


def test_an_out_that_is_a_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    frozen(tmp_path, ["good"])
    (tmp_path / OUT).mkdir()
    with pytest.raises(Refused, match="is a folder"):
        run_here(tmp_path, FakeDevice(tmp_path), options=Options())


class Unmetered(FakeDevice):
    """Its energy cannot be read, in one way or another."""

    def energy(self, slot: str, seconds: float) -> dict[str, float]:
        if slot == "good":
            raise EnergyUnread("NVML: Shared Library Not Found")
        os._exit(9)


def test_energy_that_cannot_be_read_unmakes_no_sample(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["good", "fine"])
    assert run_here(tmp_path, Unmetered(tmp_path), options=Options(joules=True)) == INCOMPLETE
    timings = by_name(read_results(tmp_path / OUT, manifest))
    for name, why in (("good", "Shared Library"), ("fine", "exit 9")):
        assert (timings[name].status, len(timings[name].samples_s)) == ("ok", 30)
        assert why in str((timings[name].energy or {})["why_not"])
    assert not (tmp_path / PARTIAL).exists(), "there is nothing to go on with"


# ---- several GPUs ------------------------------------------------------------------------------------------------
def test_cases_are_shared_out_and_a_death_stays_on_its_gpu(tmp_path: Path) -> None:
    names = ["good", "fine", "b.good", "b.no-graph", "b.fine"]
    samples = measured(tmp_path, names, gpus=2)
    status = {t.candidate: t.status for t in samples.timings}
    twice = ("good#again", "fine#again", "b.good#again", "b.fine#again")
    assert status == dict.fromkeys((*names, *twice), "ok") | {"b.no-graph": "died"}
    assert {d["uuid"] for d in samples.environment["devices"]} == {"gpu-0", "gpu-1"}
    batches = [json.loads(line)[1] for line in (tmp_path / "batches.jsonl").read_text().splitlines()]
    assert all(len({s.startswith("b.") for s in slots}) == 1 for slots in batches), "a round is of one GPU"


def test_more_gpus_than_cases_is_no_more_lanes(tmp_path: Path) -> None:
    samples = measured(tmp_path, ["good", "fine"], gpus=4)
    assert "devices" not in samples.environment
    assert samples.environment["gpus"] == 4


class OtherGpu(FakeDevice):
    def open(self) -> dict[str, Any]:
        return {**super().open(), "uuid": "another"}


def test_rounds_of_two_gpus_are_not_mixed(tmp_path: Path) -> None:
    frozen(tmp_path, ["good", "kills"])
    run_here(tmp_path, FakeDevice(tmp_path), options=Options())
    kept = kept_rounds(tmp_path)
    with pytest.raises(Refused, match="this is another"):
        run_here(tmp_path, OtherGpu(tmp_path))
    assert kept_rounds(tmp_path) == kept


# ---- what can be asked for ---------------------------------------------------------------------------------------
class Watched(FakeDevice):
    """Writes down how it was asked to measure."""

    def renew(self, slots: Any) -> None:
        self._note("renew", sorted(slots))

    def batch(self, slots: Any, mark: Any, warm: bool = False) -> Any:
        self._note("warm", warm)
        return super().batch(slots, mark, warm)

    def _note(self, kind: str, value: Any) -> None:
        with (self.folder / "notes.jsonl").open("a") as file:
            file.write(json.dumps([kind, value]) + "\n")


def notes(folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in (folder / "notes.jsonl").read_text().splitlines():
        kind, value = json.loads(line)
        found.setdefault(kind, []).append(value)
    return found


def test_short_candidates_get_a_new_graph_each_round(tmp_path: Path) -> None:
    frozen(tmp_path, ["good", "slow"])
    run_here(tmp_path, Watched(tmp_path), options=Options(rounds=7))
    found = notes(tmp_path)
    assert found["renew"] == [["good", "good#again"]] * 7, "and not the slow one"
    assert not any(found["warm"])


def test_a_warm_cache_two_slots_each_and_joules_by_request(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["good", "fine"])
    run_here(tmp_path, Watched(tmp_path), options=Options(l2="warm", again="all", joules=True))
    assert all(notes(tmp_path)["warm"])
    samples = read_results(tmp_path / OUT, manifest)
    timings = by_name(samples)
    assert set(timings) == {"good", "good#again", "fine", "fine#again"}
    assert samples.environment["l2"] == "warm"
    assert timings["good"].energy == {
        "joules": 4e-3,
        "gross_w": 500.0,
        "idle_w": 120.0,
        "replays": 100,
        "seconds": 0.6,
    }


def test_a_resumed_run_keeps_its_options(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["good", "kills"])
    run_here(tmp_path, FakeDevice(tmp_path), options=Options(rounds=9, joules=True))
    device = FakeDevice(tmp_path)
    device.number = 100
    run_here(tmp_path, device)
    timing = by_name(read_results(tmp_path / OUT, manifest))["good"]
    assert len(timing.samples_s) == 9
    assert timing.energy is not None
