"""Groups of aggregates in parts: each host sends one row a group, with the parts of every aggregate (aggregates.py).

Hosts group by the expressions of the statement, g0, g1, …, and by the arguments of DISTINCT aggregates; they compute
a0, a1, …. The merged SELECT is the statement's own, with these columns in the place of groups and aggregates.
"""

from __future__ import annotations

from probe_agent.sql.merging import MergedDatabase

from .aggregates import OF_VALUES, RECIPES
from .select import OF_ONE_ROW, Select, Unsplittable
from .tree import Tree, arguments, column, key, place, replaced

__all__ = ["is_grouped", "split_groups"]


def is_grouped(select: Select) -> bool:
    """Return whether a row of the answer stands for a group of rows."""
    node = select.node
    return bool(
        node["group_expressions"]
        or node["group_sets"]
        or node["aggregate_handling"] != "STANDARD_HANDLING"
        or node["having"] is not None
        or select.has_aggregate([node["select_list"], node["modifiers"], node["qualify"]])
    )


def split_groups(select: Select, database: MergedDatabase) -> tuple[Tree, Tree]:
    """Return the SELECT of the hosts and the merged one, which still lacks its source. Raises Unsplittable."""
    return _Groups(select, database).split()


class _Groups:
    def __init__(self, select: Select, database: MergedDatabase) -> None:
        self._select = select
        self._database = database
        #: What hosts group by and compute, by key; groups of the statement come first, and are in `_own`.
        self._groups: dict[str, Tree] = {}
        self._own: dict[str, str] = {}
        self._parts: dict[str, Tree] = {}

    def split(self) -> tuple[Tree, Tree]:
        select, node = self._select, self._select.node
        for group in self._grouped_by():
            if group["class"] == "CONSTANT":
                raise Unsplittable("it groups by a constant")
            place(select.of_one_row(group), self._groups)
        self._own = {same: f"g{at}" for at, same in enumerate(self._groups)}
        over_parts = {each: self._over_parts(node[each]) for each in ("select_list", "modifiers", "having", "qualify")}
        groups = list(self._groups.values())
        sent = [{**group, "alias": f"g{at}"} for at, group in enumerate(groups)]
        sent += [{**part, "alias": f"a{at}"} for at, part in enumerate(self._parts.values())]
        if not sent:
            raise Unsplittable("there is nothing to compute")
        host = {**node, **_by(groups), "select_list": sent, "having": None, "qualify": None, "modifiers": []}
        merged = {**node, **over_parts, **_by([column(name) for name in self._own.values()]), "where_clause": None}
        return host, merged

    def _grouped_by(self) -> list[Tree]:
        node = self._select.node
        groups = node["group_expressions"]
        if node["aggregate_handling"] == "FORCE_AGGREGATES" and not groups:  # GROUP BY ALL
            return [item for item in node["select_list"] if not self._select.has_aggregate(item)]
        if node["aggregate_handling"] != "STANDARD_HANDLING":
            raise Unsplittable("an unknown kind of GROUP BY")
        if node["group_sets"] not in ([], [list(range(len(groups)))]):
            raise Unsplittable("several sets of groups")
        return [self._select.meant(group) for group in groups]

    def _over_parts(self, tree: Tree) -> Tree:
        """Return `tree` over the parts instead of the table."""
        return replaced(tree, self._over_part)

    def _over_part(self, node: dict[str, Tree]) -> Tree | None:
        kind = node.get("class")
        if kind is None:
            return None
        alias = node.get("alias", "")
        if (own := self._own.get(key(node))) is not None:
            return column(own, alias)
        if kind == "FUNCTION":
            name = node["function_name"].lower()
            if name in self._select.functions.aggregates:
                return {**self._aggregate(node, name), "alias": alias}
            if name not in self._select.functions.pure:
                raise Unsplittable(f"{name} may need more than its arguments")
        elif kind == "COLUMN_REF":
            item = self._select.meant(node)
            if item is node:
                raise Unsplittable(f"{'.'.join(node['column_names'])} is not grouped by")
            return {**self._over_parts(item), "alias": alias}
        elif kind == "STAR":
            if not node.get("columns") or node.get("expr") is not None:  # ORDER BY ALL
                raise Unsplittable("a star among aggregates")
            return node
        elif kind not in OF_ONE_ROW and kind != "WINDOW":
            raise Unsplittable(f"{kind.lower()} among aggregates")
        return None

    def _aggregate(self, node: Tree, name: str) -> Tree:
        """Return what merges the parts of the aggregate `node`, which the hosts are to compute."""
        over = [self._select.of_one_row(argument) for argument in arguments(node)]
        self._select.of_one_row(node["filter"])
        if node["order_bys"]["orders"] or node.get("schema") or node.get("export_state"):
            raise Unsplittable("an aggregate with an order")
        if node["distinct"] or name not in RECIPES:
            if name not in OF_VALUES:
                raise Unsplittable(f"{name} cannot be merged from parts")
            return self._over_values(node, over)
        recipe = RECIPES[name]
        if recipe.num_arguments != len(over):
            raise Unsplittable(f"{name} with {len(over)} arguments")
        values = {f"_{at}": each for at, each in enumerate(over)}
        names = []
        for part in recipe.parts:
            template = self._database.expression(part.format(*values))
            filled = replaced(template, lambda each: values.get(each.get("column_names", [""])[0]))
            names.append(f"a{place({**filled, 'filter': node['filter']}, self._parts)}")
        return self._database.expression(recipe.merged.format(**dict(zip("abc", names, strict=False))))

    def _over_values(self, node: Tree, over: list[Tree]) -> Tree:
        """Return the aggregate over each value once: the hosts group by its arguments too."""
        sent = {}
        for each in over if node["filter"] is None else [*over, node["filter"]]:
            sent[id(each)] = column(f"g{place(each, self._groups)}")
        return replaced(node, lambda each: sent.get(id(each)))


def _by(groups: list[Tree]) -> Tree:
    sets = [list(range(len(groups)))] if groups else []
    return {"group_expressions": groups, "group_sets": sets, "aggregate_handling": "STANDARD_HANDLING"}
