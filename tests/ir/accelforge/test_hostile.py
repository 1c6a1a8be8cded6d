"""Files that are broken, too large or made to do harm: each gets one clear line, quickly, and nothing else happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from theodolite.errors import TextError, TheodoliteError, Unsupported
from theodolite.ir.accelforge.expression import ExpressionError, TensorSet, evaluate
from theodolite.ir.accelforge.latency import latency_form
from theodolite.ir.accelforge.source import MAX_DEPTH, MAX_ENTRIES, Item, read
from theodolite.ir.accelforge.template import MAX_CHARS, MAX_ITEMS, MAX_NODES, MAX_STEPS, MAX_STRING

LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\n"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("a: !!python/object/apply:os.system [id]", Unsupported, "f.yaml, line 1: tag '!!python/object/apply:os"),
        ("a: 1\nb: !!binary aGk=", Unsupported, "f.yaml, line 2: tag '!!binary'"),
        (LAUGHS, Unsupported, "f.yaml, line 2: alias *a"),
        ("a: {<<: {b: 1}}", Unsupported, "f.yaml, line 1: merge key"),
        ("a: 1\n? [b]\n: 2", Unsupported, "f.yaml, line 2: a key is a word"),
        ("a: 1\na: 2", TextError, "f.yaml, line 2: 'a' is given twice"),
        ("[" * 2000, TextError, f"f.yaml, line 1: nested more than {MAX_DEPTH} deep"),
        ("- " * 2000 + "x", TextError, f"f.yaml, line 1: nested more than {MAX_DEPTH} deep"),
        ("a: " + "9" * 5000, TextError, "f.yaml, line 1: a number of more than 18 digits"),
        ("a: [1, 2", TextError, "f.yaml, line 1: "),
        ("a:\n\t- b", TextError, "f.yaml, line 2: "),
        ("", TextError, "f.yaml: the file is empty"),
        ("a: 1\n---\nb: 1", Unsupported, "f.yaml: a file holds one YAML document"),
        ("x" * (MAX_CHARS + 1), TextError, f"f.yaml: {MAX_CHARS + 1} characters"),
        ("a: \x00", TextError, "f.yaml: no YAML"),
        ("{{ ''.__class__ }}", Unsupported, "f.yaml, line 1: getattr in a template"),
        ("a: {{ x['__class__'] }}", Unsupported, "f.yaml, line 1: getitem in a template"),
        ("a: 1\nb: {{ cycler.__init__.__globals__.os }}", Unsupported, "f.yaml, line 2: getattr in a template"),
        ("{{ x() }}", Unsupported, "f.yaml, line 1: a call in a template"),
        ("{% include 'x' %}", Unsupported, "f.yaml, line 1: include in a template"),
        ("{% macro m() %}{% endmacro %}", Unsupported, "f.yaml, line 1: macro in a template"),
        ("{{ 'x' | attr('__class__') }}", Unsupported, "f.yaml, line 1: filter 'attr' in a template"),
        ("{{ 'x' ~ 'y' }}", Unsupported, "f.yaml, line 1: concat in a template"),
        ("{{ 'x' * 1000000000 }}", TextError, "f.yaml, line 1: a template cannot be filled in: * takes two numbers"),
        ("{{ '%1000000000d' % 1 }}", TextError, "f.yaml, line 1: a template cannot be filled in: % takes two numbers"),
        ("{{ [0] * 1000000000 }}", TextError, "f.yaml, line 1: a template cannot be filled in: * takes two numbers"),
        ("{{ 9 ** 9 ** 9 ** 99 }}", TextError, "f.yaml, line 1: a template cannot be filled in: a power of more than"),
        ("{{ missing }}", TextError, "f.yaml, line 1: a template cannot be filled in: 'missing' is undefined"),
        ("{{ _each }}", Unsupported, "f.yaml, line 1: the name '_each' in a template"),
        ("{% for i in range(9999999999) %}{% endfor %}", TextError,
         f"f.yaml, line 1: a template cannot be filled in: its loops and ranges make more than {MAX_STEPS:,} steps"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", TextError,
         f"f.yaml, line 1: a template cannot be filled in: its loops and ranges make more than {MAX_STEPS:,} steps"),
        ("{% for i in range(9999) %}" + "x" * 100 + "{% endfor %}", TextError,
         f"f.yaml: a template cannot be filled in: it makes more than {MAX_CHARS} characters"),
        ("a: 1\nb: 2\nc: {{ missing }}\nd: 1", TextError,
         "f.yaml, line 3: a template cannot be filled in: 'missing' is undefined"),
        ("a: !!int 1", Unsupported, "f.yaml, line 1: tag '!!int': write the value without it"),
        ("a: !!str 1", Unsupported, "f.yaml, line 1: tag '!!str': write the value without it"),
        ("{% for i in range(3) %}", TextError, "f.yaml, line 1: "),
        ("{% for i in range(9999) %}" + "{% if 0 %}{% endif %}" * 999 + "{% endfor %}", TextError,
         f"f.yaml, line 1: a template cannot be filled in: its loops and ranges make more than {MAX_STEPS:,} steps"),
        ("{% if 0.5 in range(9999999999) %}{% endif %}", TextError,
         f"f.yaml, line 1: a template cannot be filled in: its loops and ranges make more than {MAX_STEPS:,} steps"),
        ("{% if 0.5 is in range(10 ** 30) %}{% endif %}", TextError,
         f"f.yaml, line 1: a template cannot be filled in: its loops and ranges make more than {MAX_STEPS:,} steps"),
        ("{{ range(*range(9999999999)) }}", Unsupported, "f.yaml, line 1: a list of arguments in a template"),
        ("{{ dict(a=1) }}", Unsupported, "f.yaml, line 1: a call in a template"),
        ("{% set a = [1, 1] %}{% set b = [a, a] %}{% set c = [b, b] %}", TextError,
         "f.yaml, line 1: a template cannot be filled in: a name holds numbers and words, and no lists of lists"),
        ("{% for a in [[1, 1]] %}{% for b in [[a, a]] %}{% endfor %}{% endfor %}", TextError,
         "f.yaml, line 1: a template cannot be filled in: a name holds numbers and words, and no lists of lists"),
        ("{% set a = [" + "1," * (MAX_ITEMS + 1) + "] %}", TextError,
         f"f.yaml, line 1: a template cannot be filled in: a name holds at most {MAX_ITEMS} values, not "),
        ("{{ '" + "x" * (MAX_STRING + 1) + "' | upper }}", Unsupported,
         f"f.yaml, line 1: a string of more than {MAX_STRING} characters in a template"),
        ("{{ 5 | round(-999999999) }}", TextError,
         "f.yaml, line 1: a template cannot be filled in: round takes a number, and at most 30 digits"),
        ("{{ [" + "1," * MAX_NODES + "] }}", TextError, f"f.yaml: its templates have more than {MAX_NODES:,} parts"),
        ("{% for i in range(1) %}" * 30 + "{% endfor %}" * 30, TextError,
         "f.yaml: a template cannot be filled in: it is nested too deeply"),
        ("[" + "1," * MAX_ENTRIES + "2]", TextError,
         f"f.yaml, line 1: a list or mapping of more than {MAX_ENTRIES} entries"),
        ("a: !" + "A" * 9999 + " 1", Unsupported, "f.yaml, line 1: tag '!AAAAAAA"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", TheodoliteError, "f.yaml"),
    ],
)  # fmt: skip
def test_one_line_and_no_harm(text: str, kind: type[TheodoliteError], said: str) -> None:
    before = time.monotonic()
    with pytest.raises(kind) as caught:
        read(text, "f.yaml", {"x": 1})
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - before < 20  # a bomb would take hours or all memory


@pytest.mark.parametrize("tagged", ["!Evil {a: 1}", "!Evil [1]", "!Evil 1", "!Evil word"])
def test_a_tag_that_is_not_part_of_what_is_read_is_refused(tagged: str) -> None:
    item = read(f"a: {tagged}", "f.yaml", {}).entries("it")["a"]
    readers: list[Callable[[], object]] = [
        lambda: item.fields("a size", ("a",)), lambda: item.entries("a size"), lambda: item.items("a size"),
        lambda: item.word("a size"), lambda: item.text("a size"), lambda: item.scalar("a size"),
        lambda: item.flag("a size"), lambda: item.whole("a size"),
    ]  # fmt: skip
    for reader in readers:
        with pytest.raises(Unsupported, match=r"^f.yaml, line 1: !Evil where a size is read$"):
            reader()


def test_lists_in_templates_are_still_lists() -> None:
    text = "a: [{% for k, n in [('x', 1), ('y', 2)] %}{{ k }}{{ n }},{% endfor %}]\n"
    text += "b: {{ 2.71 | round(1) }}{% if 'x' in ('x', 'y') and 3 in range(4) %}1{% endif %}"
    found = read(text, "f", {}).entries("it")
    assert [v.value for v in found["a"].items("a")] == ["x1", "y2"]
    assert found["b"].value == 2.71


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = (
        "{n: y, on: off, no: 1:30, i: 0x10, o: 0o20, u: 1_000, f: 1e3, inf: .inf, t: true, q: 'true', z: ~, s: 12 * 3}"
    )
    values = {k: v.value for k, v in read(text, "f", {}).entries("it").items()}
    assert values == {"n": "y", "on": "off", "no": "1:30", "i": 16, "o": 16, "u": 1000, "f": 1000.0,
                      "inf": float("inf"), "t": True, "q": "true", "z": None, "s": "12 * 3"}  # fmt: skip


def test_templates_fill_in_values_loops_and_choices() -> None:
    text = "{% set k = K | default(2) %}a: [{% for i in range(3) %}{{ i * k }},{% endfor %}]\n"
    text += "{% if X %}b: {{ X }}{% endif %}"
    item = read(text, "f", {"X": 5})
    assert [v.value for v in item.entries("it")["a"].items("a")] == [0, 2, 4]
    assert item.entries("it")["b"].value == 5


# ---- expressions -------------------------------------------------------------------------------------------------
SPACE = frozenset("QKS")
NAMES = {t: TensorSet(frozenset(t), SPACE, {"Q": 8, "K": 8, "S": 32}) for t in SPACE} | {
    "All": TensorSet(SPACE, SPACE),
    "clock": 1e9,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72*1024*1024*8", 72 * 1024 * 1024 * 8),
        ("8 * 128 * 2.52e9", 8 * 128 * 2.52e9),
        ("2**10 - 7 // 2 % 4 / 8", 2**10 - 7 // 2 % 4 / 8),
        ("-(3 + 4) * clock", -7e9),
        ("inf", float("inf")),
        ("len(All) == 3", True),
        ("1 < len(All) <= 2", False),
        ("Q | K", TensorSet(frozenset("QK"), SPACE)),
        ("~(Q | K)", TensorSet(frozenset("S"), SPACE)),
        ("All - Q & K", TensorSet(frozenset("K"), SPACE)),
        ("S.bits_per_value if S else 0", 32),
        ("5 if Q & K else 6", 6),
        ("not Q or 3", 3),
        ("max(1, ceil(2.5), 2)", 3),
        (7, 7),
    ],
)
def test_an_expression_has_its_value(text: object, value: object) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "().__class__.__bases__",
        "All.members",
        "Q.__class__",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "open('f')",
        "len.__self__",
        "'a' * 9",
        "9**9**9",
        "1e308 * 10 - 1e308 * 10",
        "2**0.5j",
        "1 / 0",
        "(-1) ** 0.5",
        "1" + "0" * 400,
        "Q + 1",
        "~3",
        "3 & 4",
        "2^3",
        "unknown",
        "1 +",
        "",
        "-" * 900 + "1",
        "(" * 300 + "1" + ")" * 300,
        "1" + "+1" * 2000,
        "x := 3",
        "f'{1}'",
        "max(*All)",
        "max(1, key=2)",
    ],
)
def test_what_is_no_arithmetic_raises(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, NAMES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "flag"),
    [("true", True), ("1", True), ("yes", True), ("'on'", True), ("false", False), ("0", False), ("No", False)],
)
def test_a_flag_has_the_words_that_accelforge_takes(word: str, flag: bool) -> None:
    assert read(f"a: {word}", "f", {}).entries("it")["a"].flag("a flag") is flag


def test_an_expression_says_where_it_stands() -> None:
    with pytest.raises(TextError, match=r"^f, line 3: unknown name 'nope'"):
        Item("f", 3, None, "nope").evaluated({})


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("sum(a.n_calls / a.throughput for a in actions)", ("sum", 1.0, True)),
        ("max(a.n_calls / a.throughput for a in actions)", ("max", 1.0, True)),
        ("sum(x.n_calls for x in actions) / 32 / clock", ("sum", 1 / 32 / 1e9, False)),
        ("2 * sum(a.n_calls * 3 / a.throughput / 2 for a in actions)", ("sum", 3.0, True)),
        (0, ("sum", 0.0, False)),
        ("0 * 3", ("sum", 0.0, False)),
    ],
)
def test_a_total_latency_has_a_form(text: object, form: tuple[str, float, bool]) -> None:
    found = latency_form(text, NAMES)
    assert (found.combine, found.factor, found.by_throughput) == pytest.approx(form)


@pytest.mark.parametrize(
    "text",
    [
        "sum(a.n_calls / a.throughput for a in actions) + 1",
        "sum(a.n_calls / a.throughput for a in actions if a)",
        "sum(a.n_calls ** 2 for a in actions)",
        "sum(a.throughput / a.n_calls for a in actions)",
        "sum(a.n_calls / a.throughput / a.throughput for a in actions)",
        "sum(b.n_calls for a in actions)",
        "sum(a.n_calls for a in other)",
        "min(a.n_calls for a in actions)",
        "1 / sum(a.n_calls for a in actions)",
        "sum(a.n_calls for a in actions) / 0",
        "3",
    ],
)
def test_any_other_total_latency_raises(text: str) -> None:
    with pytest.raises(ExpressionError):
        latency_form(text, NAMES)


def test_no_file_reads_another(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(Unsupported):
        read(f"{{% import '{tmp_path / 'secret'}' as s %}}", "f", {})
