"""Copies of trained models: targets, averages, and the engines that generate. Read from the parameters' versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .rule import Row

__all__ = ["SQL", "copies"]

#: A row for each model, with how often its parameters were changed: the one of the least (`versions`), and of the most.
SQL = """
SELECT module, any_value(class) AS class, any_value(modules.parameters) AS parameters, any_value(place) AS place,
    min(versions) AS versions, max(versions) AS most, any_value(optimizer) AS optimizer, bool_or(module IN
        (SELECT module FROM python.torch_trace WHERE phase = 'generate' AND stage = 'forward')) AS generates
FROM (SELECT module, class, parameters, place FROM torch.modules WHERE depth = 0) AS modules
JOIN (SELECT split_part(module, '.', 1) AS module, versions, optimizer FROM torch.parameters WHERE module IS NOT NULL)
    USING (module)
GROUP BY module ORDER BY module
"""


def copies(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield each model that no optimizer holds, with the trained one that it is like."""
    known = list(rows)
    for copy in known:
        for trained in known:
            is_like = (copy["class"], copy["parameters"]) == (trained["class"], trained["parameters"])
            if is_like and copy["optimizer"] is None and trained["optimizer"] is not None:
                yield copy, trained
