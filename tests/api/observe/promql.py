# SPDX-License-Identifier: Apache-2.0
"""Computes the labels of a PromQL expression's result, by Prometheus' rules for each operation."""

from collections.abc import Iterator, Mapping

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    BinModifier,
    Call,
    Expr,
    LabelModifierType,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    VectorMatchCardinality,
    VectorSelector,
)

Exported = Mapping[str, frozenset[str]]
"""The labels of each metric's samples, including those from the scrape."""

SETS = {"and", "or", "unless"}


class MistakenError(Exception):
    """A valid expression that selects nothing, or labels that do not exist."""


def selectors(expression: Expr) -> Iterator[VectorSelector]:
    """Yield each selector of an expression."""
    if isinstance(expression, VectorSelector):
        yield expression
    elif isinstance(expression, MatrixSelector):
        yield expression.vector_selector
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from selectors(argument)
    elif isinstance(expression, BinaryExpr):
        yield from selectors(expression.lhs)
        yield from selectors(expression.rhs)
    elif isinstance(expression, AggregateExpr | ParenExpr | SubqueryExpr | UnaryExpr):
        yield from selectors(expression.expr)


def labels(expression: Expr, exported: Exported) -> frozenset[str] | None:
    """Return the labels of the result, None for a number. Raises MistakenError."""
    if isinstance(expression, VectorSelector):
        found = exported.get(expression.name or "")
        if found is None:
            raise MistakenError(f"{expression.name} is not exported")
        _known(frozenset(each.name for each in expression.matchers.matchers), found)
        return found
    if isinstance(expression, MatrixSelector):
        return labels(expression.vector_selector, exported)
    if isinstance(expression, NumberLiteral):
        return None
    if isinstance(expression, ParenExpr | SubqueryExpr | UnaryExpr):
        return labels(expression.expr, exported)
    if isinstance(expression, Call):
        vectors = [found for each in expression.args if (found := labels(each, exported)) is not None]
        return vectors[0] if vectors else None
    if isinstance(expression, AggregateExpr):
        return _aggregated(expression, exported)
    if isinstance(expression, BinaryExpr):
        return _combined(expression, exported)
    raise MistakenError(f"nobody has said here which labels are left of {expression.prettify()}")


def _known(named: frozenset[str], there: frozenset[str]) -> frozenset[str]:
    if not named <= there:
        raise MistakenError(f"no sample has {', '.join(sorted(named - there))}")
    return named


def _aggregated(expression: AggregateExpr, exported: Exported) -> frozenset[str]:
    there = labels(expression.expr, exported) or frozenset()
    if expression.modifier is None:
        return frozenset()
    named = _known(frozenset(expression.modifier.labels), there)
    return named if expression.modifier.type == AggModifierType.By else there - named


def _combined(expression: BinaryExpr, exported: Exported) -> frozenset[str] | None:
    lhs, rhs = labels(expression.lhs, exported), labels(expression.rhs, exported)
    if lhs is None or rhs is None:
        return rhs if lhs is None else lhs
    modifier = expression.modifier
    matched = _matched(modifier, lhs), _matched(modifier, rhs)
    if matched[0] != matched[1]:
        raise MistakenError(
            f"nothing is alike by {sorted(matched[0])} and {sorted(matched[1])}: {expression.prettify()}"
        )
    if str(expression.op) in SETS:
        return lhs & rhs if str(expression.op) == "or" else lhs
    if modifier is not None and modifier.card == VectorMatchCardinality.ManyToOne:
        return lhs | _known(frozenset(modifier.group_labels or ()), rhs)
    if modifier is not None and modifier.card == VectorMatchCardinality.OneToMany:
        return rhs | _known(frozenset(modifier.group_labels or ()), lhs)
    return matched[0]


def _matched(modifier: BinModifier | None, there: frozenset[str]) -> frozenset[str]:
    """Return the labels by which one side is matched with the other."""
    if modifier is None or modifier.matching is None:
        return there
    named = frozenset(modifier.matching.labels)
    return _known(named, there) if modifier.matching.type == LabelModifierType.Include else there - named
