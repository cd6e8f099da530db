"""The aligned table: full width in a pipe, as wide as the terminal otherwise."""

from __future__ import annotations

from probe_cli.render import Sheet
from probe_cli.render.table import table
from probe_cli.render.terminal import width_of


def lines(sheet: Sheet, width: int | None = None) -> list[str]:
    return list(table(sheet, width)[0])


def test_numbers_stand_on_the_right_and_texts_on_the_left() -> None:
    sheet = Sheet(("module", "count"), ("VARCHAR", "BIGINT"), [["fc", 5], ["encoder", 1000]])

    shown = lines(sheet)

    assert shown == ["module   count", "-------  -----", "fc           5", "encoder   1000"]


def test_floats_have_the_digits_that_matter() -> None:
    values = [0.00012345678, 1.5, 123456.789, 1e-12, -3.0, 1e300]

    shown = lines(Sheet(("value",), ("DOUBLE",), [[value] for value in values]))

    assert [line.strip() for line in shown[2:]] == ["0.000123457", "1.5", "123456.8", "1e-12", "-3", "1e+300"]


def test_null_and_empty_text_do_not_look_alike() -> None:
    sheet = Sheet(("a", "b"), ("VARCHAR", "DOUBLE"), [[None, None], ["", "NaN"]])

    shown = lines(sheet)

    assert shown[2] == "NULL  NULL"
    assert shown[3] == "       NaN"


def test_nothing_is_cut_without_a_width() -> None:
    long = "x" * 5000

    shown = lines(Sheet(("text",), ("VARCHAR",), [[long]]))

    assert shown[2] == long


def test_wide_texts_are_cut_to_fit_and_numbers_never() -> None:
    sheet = Sheet(("n", "text"), ("BIGINT", "VARCHAR"), [[123456789, "word " * 50]])

    shown = lines(sheet, 40)

    assert max(width_of(line) for line in shown) == 40
    assert shown[2].startswith("123456789  word word")
    assert shown[2].endswith("…")


def test_columns_without_room_are_left_out_and_named() -> None:
    names = tuple(f"column_{number}" for number in range(20))
    sheet = Sheet(names, ("DOUBLE",) * 20, [[1.0] * 20])

    shown, missing = table(sheet, 40)

    assert all(width_of(line) <= 40 for line in shown)
    assert missing == names[20 - len(missing) :]


def test_wide_characters_count_twice() -> None:
    shown = lines(Sheet(("name", "n"), ("VARCHAR", "BIGINT"), [["模型", 1], ["ab", 2]]))

    assert width_of(shown[2]) == width_of(shown[3])


def test_control_characters_of_a_target_are_spelt_out() -> None:
    shown = lines(Sheet(("text",), ("VARCHAR",), [["a\x1b[31m\nb"]]))

    assert shown[2] == "a\\x1b[31m\\nb"
