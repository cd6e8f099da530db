"""One shape of each table for hosts of different versions."""

from __future__ import annotations

import pytest

from probe_agent.errors import NoAnswer
from probe_agent.wire import ColumnInfo, TableInfo
from probe_cli.cluster.sql.schema_discovery import _checked, known_tables


def table(called: str, rows: int, **columns: str) -> TableInfo:
    return TableInfo(
        name=called,
        doc="",
        kind="recorded",
        rows=rows,
        lost=0,
        covers=None,
        first=None,
        last=None,
        columns=tuple(ColumnInfo(each, kind, "", "") for each, kind in columns.items()),
    )


class Named:
    """A member as far as tables know it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint


def test_the_common_shape_has_all_columns_with_the_types_of_most_hosts() -> None:
    old, new, newer = Named("old"), Named("new"), Named("newer")
    lists = [
        (old, [table("test.Steps", 5, step="INTEGER", x="DOUBLE")]),
        (new, [table("test.steps", 7, step="BIGINT", x="DOUBLE", name="VARCHAR")]),
        (
            newer,
            [table("test.steps", 9, step="BIGINT", x="DOUBLE", name="VARCHAR"), table("test.late", 1, a="BIGINT")],
        ),
    ]

    found = known_tables(lists)  # type: ignore[arg-type]

    steps = found["test.steps"]
    assert steps.columns == {"step": "BIGINT", "x": "DOUBLE", "name": "VARCHAR"}
    assert steps.missing(old, ["x", "name"]) == ["name"]  # type: ignore[arg-type]
    assert steps.source(new, ["step", "name"]) == steps.source(old, ["x"]) == ""  # type: ignore[arg-type]
    assert steps.source(old, ["step", "name"]) == (  # type: ignore[arg-type]
        'SELECT CAST("step" AS BIGINT) AS "step", CAST(NULL AS VARCHAR) AS "name" FROM "test"."steps"'
    )
    assert steps.estimated_bytes(["step", "name"]) == (5 + 7 + 9) * 28
    assert list(found["test.late"].had_by) == [newer]


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (table("test.steps", 1, x="BIGINT); DROP TABLE x; --"), "not a column type"),
        (table('te"st.steps', 1, x="BIGINT"), "not a table name"),
        (table("steps", 1, x="BIGINT"), "not a table name"),
        (table("test.steps", 1), "has no columns"),
        (table("test.steps", 1, x="BIGINT", X="BIGINT"), "two of one name"),
        (table("test.steps", "many", x="BIGINT"), "malformed"),  # type: ignore[arg-type]
        (table("test.steps", 1, x=7), "malformed"),  # type: ignore[arg-type]
    ],
)
def test_a_listing_that_no_host_server_sends_is_refused(listed: TableInfo, why: str) -> None:
    with pytest.raises(NoAnswer, match=why):
        _checked(Named("liar"), listed, lambda kind: kind == "BIGINT")  # type: ignore[arg-type]
