"""Groups of aggregates in parts: each host sends one row a group, with the parts of every aggregate (aggregates.py)."""

from __future__ import annotations

from .aggregates import OVER_DISTINCT, RECIPES
from .selects import OF_ONE_ROW, PARTS, Parser, Select, Split, Unsplittable
from .tree import Tree, arguments, column, integer, key, replaced

__all__ = ["Groups"]


class Groups:
    """One SELECT with aggregates."""

    def __init__(self, parser: Parser, select: Select, titles: list[str]) -> None:
        self._parser = parser
        self._select = select
        self._titles = titles
        #: What the hosts group by, by key; the first `_num_own` of them is what the statement groups by.
        self._groups: dict[str, Tree] = {}
        self._parts: list[Tree] = []
        self._shifts: dict[str, str] = {}
        self._merged: dict[str, Tree] = {}

    def split(self) -> Split:
        select, node = self._select, self._select.node
        for group in self._grouped_by():
            if group["class"] == "CONSTANT":
                raise Unsplittable("a group of a constant")
            self._groups.setdefault(key(group), select.of_one_row(group))
        own = [f"g{at}" for at in range(len(self._groups))]
        self._own = dict(zip(self._groups, own, strict=True))
        items = [
            {**self._rewritten(item), "alias": title} for item, title in zip(select.items, self._titles, strict=True)
        ]
        ends = {name: self._rewritten(self._ends(name)) for name in ("modifiers", "having", "qualify")}
        where = node["where_clause"]
        host_groups = [{**group, "alias": f"g{at}"} for at, group in enumerate(self._groups.values())]
        host_parts = [{**part, "alias": f"a{at}"} for at, part in enumerate(self._parts)]
        bare = [{**group, "alias": ""} for group in host_groups]
        host = {
            **node,
            "select_list": [*host_groups, *host_parts],
            "where_clause": None if where is None else select.of_one_row(select.plain(where)),
            "group_expressions": bare,
            "group_sets": [list(range(len(bare)))] if bare else [],
            "aggregate_handling": "STANDARD_HANDLING",
            "having": None,
            "qualify": None,
            "modifiers": [],
        }
        if not host["select_list"]:
            raise Unsplittable("there is nothing to compute")
        merged = {
            **node,
            **ends,
            "select_list": items,
            "from_table": self._source(own),
            "where_clause": None,
            "group_expressions": [column(name) for name in own],
            "group_sets": [list(range(len(own)))] if own else [],
            "aggregate_handling": "STANDARD_HANDLING",
        }
        columns = tuple(str(each["alias"]) for each in host["select_list"])
        return Split(select.table, select.uses(host), host, columns, merged, True)

    def _grouped_by(self) -> list[Tree]:
        select, node = self._select, self._select.node
        if node["aggregate_handling"] == "FORCE_AGGREGATES":
            if node["group_expressions"]:
                raise Unsplittable("two kinds of GROUP BY")
            return [item for item in select.items if not select.has_aggregate(item)]
        if node["aggregate_handling"] != "STANDARD_HANDLING":
            raise Unsplittable("an unknown kind of GROUP BY")
        groups = node["group_expressions"]
        if node["group_sets"] not in ([], [list(range(len(groups)))]):
            raise Unsplittable("several sets of groups")
        return [self._meant(group) for group in groups]

    def _meant(self, group: Tree) -> Tree:
        """What GROUP BY means: a number is a column of the answer, a name is one of the table or else an alias."""
        select = self._select
        place = integer(group)
        if place is not None:
            if not 1 <= place <= len(select.items):
                raise Unsplittable("there is no such column")
            return select.items[place - 1]
        group = select.plain(group)
        if not select.is_column(group) and select.is_alias(group):
            return select.aliases[group["column_names"][0].lower()]
        return group

    def _ends(self, name: str) -> Tree:
        """ORDER BY, LIMIT, HAVING, QUALIFY with the table's columns by their bare names."""
        return self._select.plain(self._select.node[name])

    def _rewritten(self, tree: Tree) -> Tree:
        """`tree` over the parts instead of the table."""
        return replaced(tree, self._over_parts)

    def _over_parts(self, node: dict[str, Tree]) -> Tree | None:
        kind = node.get("class")
        if kind is None:
            return None
        select = self._select
        same = key(node)
        if same in self._own:
            return column(self._own[same], node.get("alias", ""))
        if kind == "FUNCTION":
            name = node["function_name"].lower()
            if name in select.functions.aggregates:
                if same not in self._merged:
                    self._merged[same] = self._aggregate(node, name)
                return {**self._merged[same], "alias": node.get("alias", "")}
            if name not in select.functions.pure:
                raise Unsplittable(f"{name} is not known")
        elif kind == "COLUMN_REF":
            if not select.is_alias(node):
                raise Unsplittable(f"{'.'.join(node['column_names'])} is not grouped by")
            return node
        elif kind == "STAR":
            if not node.get("columns") or node.get("expr") is not None:  # ORDER BY ALL
                raise Unsplittable("a star among aggregates")
            return node
        elif kind not in OF_ONE_ROW and kind != "WINDOW":
            raise Unsplittable(f"{kind.lower()} among aggregates")
        return None

    def _aggregate(self, node: Tree, name: str) -> Tree:
        select = self._select
        over = [select.of_one_row(argument) for argument in arguments(node)]
        filter_ = None if node["filter"] is None else select.of_one_row(node["filter"])
        if node["order_bys"]["orders"] or node.get("schema") or node.get("export_state"):
            raise Unsplittable("an aggregate in an order")
        if node["distinct"] or name in OVER_DISTINCT:
            if name not in ("count", "sum", "avg", "mean", "min", "max", *OVER_DISTINCT):
                raise Unsplittable(f"{name} over different values")
            return self._over_values(node)
        recipe = RECIPES.get(name)
        if recipe is None or recipe.num_arguments != len(over):
            raise Unsplittable(f"{name} is not put together from parts")
        first = len(self._parts)
        for part in recipe.parts:
            self._parts.append({**self._filled(part, over), "filter": filter_})
        names = {letter: f"a{first + at}" for at, letter in enumerate("abc"[: len(recipe.parts)])}
        if recipe.shifted:
            names["s"] = f"s{first}"
            self._shifts[names["s"]] = names["b"]
        return self._parser.expression(recipe.merged.format(**names))

    def _filled(self, part: str, over: list[Tree]) -> Tree:
        """The aggregate `part` over these arguments."""
        template = self._parser.expression(part.format(*(f"_{at}" for at in range(len(over)))))
        values = {f"_{at}": each for at, each in enumerate(over)}

        def fill(node: dict[str, Tree]) -> Tree | None:
            return values.get(node["column_names"][0]) if node.get("class") == "COLUMN_REF" else None

        return replaced(template, fill)

    def _over_values(self, node: Tree) -> Tree:
        """An aggregate over different values: the hosts group by its arguments too, and it is computed here."""

        def sent(expression: Tree) -> Tree:
            same = key(expression)
            self._groups.setdefault(same, {**expression, "alias": ""})
            return column(f"g{list(self._groups).index(same)}")

        over = {id(argument): sent(argument) for argument in arguments(node)}
        if node["filter"] is not None:
            over[id(node["filter"])] = sent(node["filter"])
        return {**replaced(node, lambda each: over.get(id(each))), "alias": ""}

    def _source(self, own: list[str]) -> Tree:
        """The parts, with what recipes need to know of all parts of a group."""
        by = f"PARTITION BY {', '.join(own)}" if own else ""
        shifts = "".join(f", avg({mean}) OVER ({by}) AS {shift}" for shift, mean in self._shifts.items())
        query = f"SELECT * FROM (SELECT *{shifts} FROM {PARTS}) AS p" if shifts else f"SELECT * FROM {PARTS}"
        return self._parser.query(query)["from_table"]
