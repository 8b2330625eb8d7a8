"""The agent's tool: a calculator for + - * / and parentheses. It evaluates nothing else, and never raises."""

import ast
import operator
from fractions import Fraction

from strands import tool

_LONGEST = 200
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / and parentheses.
    """
    return evaluate(expression)


def evaluate(expression: str) -> str:
    """The value as text, or what is wrong with the expression: a model can read both.

    >>> evaluate("(12+7)*3"), evaluate("7/2"), evaluate("2**9")
    ('57', '3.5', 'error: only numbers, + - * / and parentheses')
    """
    if len(expression) > _LONGEST:
        return f"error: longer than {_LONGEST} characters"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        return str(value) if value.denominator == 1 else f"{float(value):.10g}"
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, RecursionError, MemoryError):
        return "error: not an arithmetic expression"
    except (ValueError, OverflowError):
        return "error: the numbers are too large"
    except TypeError as error:
        return f"error: {error}"


def _value(node: ast.expr) -> Fraction:
    """Exact, so that 0.1+0.2 is 0.3."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result: Fraction = _OPERATORS[type(op)](_value(left), _value(right))
            return result
    raise TypeError("only numbers, + - * / and parentheses")
