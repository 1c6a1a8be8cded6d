"""The lowering rules: how each step of a kernel is printed in Triton.  A new one is one entry here.

The first rule whose `step` and `when` fit prints the step; a step that none fits cannot be lowered, and `supported`
says so by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from theodolite.errors import Unsupported
from theodolite.ir import steps
from theodolite.ir.steps import Step
from theodolite.lowering.emitter import Emitter
from theodolite.lowering.rules import arithmetic, control, memory


@dataclass(frozen=True)
class Rule:
    """`print` writes the lines of a step; `when` narrows the steps that the rule is for."""

    name: str
    step: type
    print: Callable[[Any, Emitter], None]
    when: Callable[[Any, Emitter], bool] = lambda step, emitter: True


RULES = (
    Rule("load a tile", steps.Load, memory.load),
    Rule("clear an accumulator", steps.Clear, memory.clear),
    Rule("store a tile", steps.Store, memory.store),
    Rule("add a partial", steps.AddPartial, memory.add_partial),
    Rule("contraction on the tensor cores", steps.Contract, arithmetic.dot, arithmetic.fits_dot),
    Rule("contraction by multiply and sum", steps.Contract, arithmetic.multiply_and_sum),
    Rule("scale and mask", steps.Finish, arithmetic.finish),
    Rule("row maximum, carried", steps.Max, arithmetic.carried_max, lambda s, e: s.carried),
    Rule("row maximum", steps.Max, arithmetic.row_max),
    Rule("exponential of a difference", steps.Exp, arithmetic.exponential),
    Rule("row sum, carried", steps.Sum, arithmetic.carried_sum, lambda s, e: s.carried),
    Rule("row sum", steps.Sum, arithmetic.row_sum),
    Rule("division", steps.Divide, arithmetic.divide),
    Rule("merge of carried state", steps.MergeState, arithmetic.merge_state),
    Rule("loop over partials", steps.For, control.loop_over_slices, lambda s, e: s.loop.rank == steps.SLICES),
    Rule("loop over a rank", steps.For, control.loop),
)


def rule_for(step: Step, emitter: Emitter) -> Rule:
    """The first rule that fits; Unsupported names the step where none does."""
    for rule in RULES:
        if isinstance(step, rule.step) and rule.when(step, emitter):
            return rule
    raise Unsupported(f"no lowering rule prints the step {type(step).__name__} of kernel {emitter.kernel.name}")


def print_steps(steps_: tuple[Step, ...], emitter: Emitter) -> None:
    """Print steps in order, each load just before the step that first needs it (shorter lives for registers)."""
    for step in memory.sink_loads(steps_):
        if isinstance(step, steps.For):
            rule_for(step, emitter).print(step, emitter)
            with emitter.indented():
                control.enter(step, emitter)
                print_steps(step.body, emitter)
                control.leave(step, emitter)
        else:
            rule_for(step, emitter).print(step, emitter)
