"""The schedule shorthand: what is printed parses back, and what is wrong is said in words."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ir.drawn import FLASH, PIPELINE, schedules
from theodolite.errors import TextError, TheodoliteError, UnknownName
from theodolite.mapper.shorthand import FAMILIES, Schedule, parse_schedule, schedule


@given(schedules(most_slices=512), st.randoms())
def test_what_is_printed_parses_back_whatever_the_order_of_keys(chosen: Schedule, random: object) -> None:
    assert parse_schedule(str(chosen)) == chosen
    family, _, words = str(chosen).partition(":")
    shuffled = words.split(",")
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert parse_schedule(f"{family}: " + " , ".join(shuffled)) == chosen


def test_the_worked_example_s_texts_are_canonical() -> None:
    assert str(parse_schedule(FLASH)) == FLASH
    assert str(parse_schedule(PIPELINE)) == PIPELINE


def test_the_pinned_domains() -> None:
    """Tiles are powers of two from 16 to 256, contractions and rows from 1; splits to 512, warps to 8, stages to 5."""
    wide, narrow = {16, 32, 64, 128, 256}, {1, 2, 4, 8, 16, 32, 64, 128, 256}
    expected = {"bm": wide, "bn": wide, "bk": narrow, "bs": narrow, "rows": narrow, "split": {2**i for i in range(10)}}
    expected |= {"warps": {1, 2, 4, 8}, "stages": {1, 2, 3, 4, 5}}
    for family, domains in FAMILIES.items():
        for domain in domains:
            assert set(domain.values) == expected[domain.key.split(".")[-1]], (family, domain.key)


WRONG = {
    "no family": ("bm=64,bn=32", TextError, "FAMILY:KEY=NUMBER"),
    "an unknown family": ("ring:bm=64", UnknownName, "unknown schedule family 'ring': use one of flash, pipeline"),
    "an unknown key": (FLASH + ",bk=3", UnknownName, "flash has no decision 'bk'"),
    "a key of the other family": (FLASH.replace("bm=64", "qk.bm=64"), UnknownName, "no decision 'qk.bm'"),
    "a key left out": (FLASH.replace("bn=32,", ""), TextError, "bn missing"),
    "nothing but the family": ("flash:", TextError, "does not read KEY=NUMBER"),
    "a key twice": (FLASH + ",bm=64", TextError, "bm is given twice"),
    "a word": (FLASH.replace("bm=64", "bm=big"), TextError, "does not read KEY=NUMBER"),
    "a negative number": (FLASH.replace("bm=64", "bm=-64"), TextError, "does not read KEY=NUMBER"),
    "a fraction": (FLASH.replace("bm=64", "bm=6.4"), TextError, "does not read KEY=NUMBER"),
    "a comma too many": (FLASH + ",", TextError, "does not read KEY=NUMBER"),
    "no power of two": (FLASH.replace("bm=64", "bm=48"), TextError, "bm=48 is outside its domain (16, 32, 64, 128"),
    "a tile too small": (FLASH.replace("bm=64", "bm=8"), TextError, "bm=8 is outside its domain"),
    "too many slices": (FLASH.replace("split=2", "split=513"), TextError, "split=513 is outside its domain (1 to 512)"),
    "no slices": (FLASH.replace("split=2", "split=0"), TextError, "split=0 is outside its domain"),
    "sixteen warps": (FLASH.replace("warps=4", "warps=16"), TextError, "warps=16 is outside its domain (1, 2, 4, 8)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_schedule_is_refused(what: str) -> None:
    text, kind, message = WRONG[what]
    with pytest.raises(kind) as caught:
        parse_schedule(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_does_worse_than_a_mistake_in_words(text: str) -> None:
    for whole in (text, "flash:" + text, FLASH + text):
        with contextlib.suppress(TheodoliteError):
            assert parse_schedule(str(parse_schedule(whole))) == parse_schedule(whole)


def test_any_number_of_slices_may_be_written_and_is_kept() -> None:
    assert schedule("flash", {**parse_schedule(FLASH).values, "split": 7}).values["split"] == 7
