"""What a run has found out so far, as the rows of its journal tell it.

Everything a phase learns goes through `Known.hear`, whether it was learned just now or by a process that was killed:
a resumed run knows what the killed one knew.  A row's kind is its first key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .device import Binary
from .isolated import TTIR_GATE, Outcome
from .spec import Bundle


@dataclass(frozen=True)
class Options:
    """What was asked of a run.

    rounds: as frozen where None.  only: these candidates, or all where empty.  l2: "cold", each sample behind a flush,
    or "warm", behind a run of its own.  again: "first", one A/A pair a case, or "all", one a candidate.  joules: the
    energy of each candidate as well.
    """

    rounds: int | None = None
    only: tuple[str, ...] = ()
    l2: str = "cold"
    again: str = "some"
    joules: bool = False


@dataclass
class Known:
    """outcomes: by candidate.  binaries: by candidate and kernel.  isolated: whose first run was made.

    inputs: the generator's name by case that is drawn.  lanes: rounds by slot, a mapping a GPU; None until planned.
    unexplained: deaths with no culprit, by lane.  unmetered: why the energy of a candidate was not read.  starts: when
    each process of this run began, as Unix seconds; befores: what its GPUs were doing then.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    binaries: dict[str, dict[str, Binary]] = field(default_factory=dict)
    isolated: set[str] = field(default_factory=set)
    inputs: dict[str, str] = field(default_factory=dict)
    lanes: list[dict[str, int]] | None = None
    unexplained: dict[int, int] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    unmetered: dict[str, str] = field(default_factory=dict)
    befores: list[dict[str, Any]] = field(default_factory=list)
    readings: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(bundle: Bundle) -> Known:
        return Known(outcomes={c.id: Outcome() for c in bundle.candidates})

    def alive(self) -> list[str]:
        return [name for name, outcome in self.outcomes.items() if outcome.status == "ok"]

    def hear(self, row: Mapping[str, Any]) -> None:
        """Learn a row; KeyError for a kind that nobody writes."""
        match next(iter(row)):
            case "began":
                self.starts.append(row["began"])
                self.befores += row["before"]
            case "kernel":
                self.binaries.setdefault(row["kernel"], {})[row["name"]] = Binary(**row["binary"])
            case "gates":
                self._gates(row)
            case "failed":
                self.outcomes[row["failed"]].fail(row["status"], row["detail"])
            case "inputs":
                self.inputs[row["inputs"]] = row["generator"]
            case "lanes":
                self.lanes = row["lanes"]
            case "unexplained":
                self.unexplained[row["unexplained"]] = row["deaths"]
            case "unmetered":
                self.unmetered[row["unmetered"]] = row["why_not"]
            case "reading":
                self.readings.append(row["reading"])
            case kind:
                raise KeyError(kind)

    def _gates(self, row: Mapping[str, Any]) -> None:
        outcome = self.outcomes[row["gates"]]
        outcome.gates += row["found"]
        for gate in (g for g in row["found"] if not g["passed"]):
            status = "drift" if gate["gate"] == TTIR_GATE else "numerics"
            outcome.fail(status, f"{gate['gate']}: {gate['reason']}")
        if "estimate_s" in row:
            outcome.estimate_s = row["estimate_s"]
            self.isolated.add(row["gates"])


def began_row(unix_s: float, options: Options, bundle: str, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first row of each process of a run; `bundle`: SHA-256 of its frozen.json; `before`: a look at each GPU."""
    return {"began": unix_s, "options": asdict(options), "bundle": bundle, "before": [dict(b) for b in before]}


def kernel_row(candidate: str, name: str, binary: Binary) -> dict[str, Any]:
    return {"kernel": candidate, "name": name, "binary": asdict(binary)}
