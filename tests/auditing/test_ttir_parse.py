"""Locations go, everything else stays; what the grammar does not cover raises."""

from __future__ import annotations

import hashlib

import pytest

from tests.auditing.ttir_compiled import compiled
from theodolite.auditing.ttir.parse import parse
from theodolite.errors import KernelError, TextError
from theodolite.lowering.compile import normalise

pytest.importorskip("triton")
FLASH = {"BM": 64, "BN": 32, "F": 64}
SIZES = ("L", "S", "S_SLICE")
MINIMAL = """module {
  tt.func public @f(%X: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %N: i32) attributes {noinline = false} {
    %c1_i32 = arith.constant 1 : i32
    tt.return
  }
}"""


def test_the_stripped_text_of_the_worked_example_has_its_hash():
    text = normalise(compiled("flash", FLASH, SIZES))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("17260f1a2592")
    merge = normalise(compiled("flash_merge", {"ROWS": 16, "F": 64}, ("L",)))
    assert hashlib.sha256(merge.encode()).hexdigest().startswith("b2593149ea51")


def test_stripping_removes_locations_alone_and_is_a_fixed_point():
    raw = compiled("flash", FLASH, SIZES)
    text = normalise(raw)
    assert "loc(" in raw
    assert "loc(" not in text
    assert "#loc" not in text
    assert normalise(text) == text
    assert text.count("\n") == sum(not line.startswith("#loc") for line in raw.splitlines()) - 1


@pytest.mark.parametrize(
    "location",
    ['loc("a b.py":1:2)', 'loc("odd )( name"(#loc3))', "loc(callsite(#loc1 at #loc2))", "loc(unknown)", 'loc("q\\")")'],
)
def test_any_form_of_location_goes(location):
    assert normalise(f"  tt.return {location}  \n\n#loc = loc(unknown)\n}} {location}") == "  tt.return\n}"


def test_a_location_that_does_not_end_raises():
    with pytest.raises(KernelError, match="does not end"):
        normalise('tt.return loc("a"')


def test_names_are_scoped_and_values_numbered_once():
    function = parse(compiled("flash", FLASH, SIZES))
    assert [p.name for p in function.params][:3] == ["Q", "K", "V"]
    assert {p.name: p.divisible for p in function.params}["BH"] == 1
    assert {p.name: p.divisible for p in function.params}["L"] == 16
    numbers: list[int] = []

    def walk(region):
        numbers.extend(region.args)
        for op in region.ops:
            numbers.extend(op.results)
            for inner in op.regions:
                walk(inner)

    walk(function.body)
    assert len(numbers) == len(set(numbers)) > 90


def test_the_minimal_module_reads():
    assert [op.name for op in parse(MINIMAL).body.ops] == ["arith.constant", "tt.return"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("module {", "module attributes {x = 1} {", "plain module"),
        ("tt.func public", "tt.func private", "one public function"),
        ("%N: i32", "%N: vector<4xi32>", "parameter"),
        ("tt.divisibility = 16 : i32", "tt.pointer_range = 32 : i32", "parameter"),
        ("tt.return", "tt.store %Z, %N : i32", "%Z is not defined"),
        ("tt.return", "%N = arith.constant 2 : i32", "%N is defined twice"),
        ("tt.return", "scf.while %N {", "scf.while opens a block"),
        ("tt.return", "scf.for unsigned %i = %N to %N step %N {", "a loop of a form"),
        ("tt.return", "scf.for %i = %N to %N step %N : i32 {\n} {llvm.unroll = 3 : i32}", "an attribute"),
        ("tt.return", "cf.br ^bb1\n^bb1:", r"not an operation that is understood: '\^bb1"),
        ("tt.return\n", "tt.return\n  }\n  tt.func private @g() {\n", "one function"),
        ("}\n}", "}", "ends inside a block"),
    ],
)
def test_what_is_not_understood_raises(old, new, message):
    assert MINIMAL.count(old) == 1
    with pytest.raises(TextError, match=message):
        parse(MINIMAL.replace(old, new))
