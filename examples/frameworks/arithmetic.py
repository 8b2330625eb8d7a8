"""What the six agents' calculators do: + - * / and parentheses. It evaluates nothing else, and never raises."""

import ast
import operator

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def evaluate(expression: str) -> str:
    """The value as text, or what is wrong with the expression: a model can read both.

    >>> evaluate("(12+7)*3"), evaluate("2**9")
    ('57', 'error: not an expression with numbers, + - * / and parentheses')
    """
    if len(expression) > 200:
        return "error: longer than 200 characters"
    try:
        return f"{_value(ast.parse(expression.strip(), mode='eval').body):.12g}"
    except ArithmeticError as error:
        return f"error: {error}"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error: not an expression with numbers, + - * / and parentheses"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result: float = _OPERATORS[type(op)](_value(left), _value(right))
            return result
    raise ValueError
