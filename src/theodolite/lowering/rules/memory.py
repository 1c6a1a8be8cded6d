"""Rules for loads, stores and accumulators."""

from __future__ import annotations

from theodolite.ir.steps import AddPartial, Clear, For, Home, Load, Step, Store, flatten
from theodolite.lowering.emitter import Emitter

TRITON_DTYPE = {"fp16": "tl.float16", "fp32": "tl.float32"}


def sink_loads(steps: tuple[Step, ...]) -> list[Step]:
    """The same steps, each Load moved down to just before the first step that reads its value."""
    out: list[Step] = []
    waiting: list[Load] = []
    for step in steps:
        if isinstance(step, Load):
            waiting.append(step)
            continue
        needed = [w for w in waiting if reads(step, w.value)]
        out += [*needed, step]
        waiting = [w for w in waiting if w not in needed]
    return out + list(waiting)


def reads(step: Step, value: str) -> bool:
    """Whether a step, or one inside it, names the value."""
    inner = flatten(step.body) if isinstance(step, For) else (step,)
    return any(_names(s, value) for s in inner if not isinstance(s, For))


def _names(step: Step, value: str) -> bool:
    words: list[str] = []
    for field in vars(step).values():
        if isinstance(field, str):
            words.append(field)
        elif isinstance(field, tuple):
            words += [x for x in field if isinstance(x, str)]
    partials = {w + "_p" for w in words} if type(step).__name__ == "MergeState" else set()
    return value in words or value in partials


def fill_text(fill: float) -> str:
    return 'float("-inf")' if fill == float("-inf") else str(fill)


def read(home: Home, fill: float, emitter: Emitter) -> str:
    """The expression that loads a home's current tile."""
    emitter.pointer(home)
    base = f"at_{home.buffer}" if emitter.merges and home.over is not None else None
    mask = emitter.mask(emitter.tiled(home.ranks))
    masked = f", mask={mask}, other={fill_text(fill)}" if mask else ""
    return f"tl.load({emitter.address(home, base)}{masked})"


def load(step: Load, emitter: Emitter) -> None:
    text = read(step.home, step.fill, emitter)
    half = step.home.dtype == "fp16"
    if half and step.value not in emitter.dot_operands:
        text, half = f"{text}.to(tl.float32)", False
    emitter.axes[step.value] = emitter.tiled(step.home.ranks)
    emitter.note_tile(emitter.axes[step.value])
    emitter.dtypes[step.value] = "fp16" if half else "fp32"
    emitter.line(f"{emitter.value(step.value)} = {text}")


def clear(step: Clear, emitter: Emitter) -> None:
    axes = emitter.tiled(step.ranks)
    emitter.axes[step.value], emitter.dtypes[step.value] = axes, "fp32"
    shape = f"[{', '.join(emitter.block(r) for r in axes)}]"
    name = emitter.value(step.value)
    if step.fill == 0.0:
        emitter.line(f"{name} = tl.zeros({shape}, tl.float32)")
    else:
        emitter.line(f"{name} = tl.full({shape}, {fill_text(step.fill)}, tl.float32)")


def store(step: Store, emitter: Emitter) -> None:
    emitter.pointer(step.home)
    value = emitter.value(step.value)
    if step.home.dtype != emitter.dtypes[step.value]:
        value += f".to({TRITON_DTYPE[step.home.dtype]})"
    mask = emitter.mask(emitter.tiled(step.home.ranks))
    emitter.line(f"tl.store({emitter.address(step.home)}, {value}{f', mask={mask}' if mask else ''})")


def add_partial(step: AddPartial, emitter: Emitter) -> None:
    name = emitter.value(step.value)
    emitter.line(f"{name} = {name} + {read(step.home, 0.0, emitter)}")
