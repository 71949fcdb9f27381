"""Parser and evaluation of `catalog search` queries: comparisons, and/or/not, parentheses.

    query    = all { "or" all }
    all      = term { "and" term }
    term     = "not" term | "(" query ")" | name [ operator value ]
    operator = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"

Nothing is evaluated as code. Names and values are words, quoted if they contain spaces or operators.
:mod:`runcatalog.query.fields` resolves the names and checks the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runcatalog.model.errors import CatalogError

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
MAX_DEPTH = 50  # nested parentheses and nots
_WORDS = ("and", "or", "not")
_KIND = re.compile(r"(flag|last|best):(?=.)", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<operator>!=|<=|>=|[=<>~])|(?P<bracket>[()])
    |(?P<word>(?:[^\s()'"=!<>~]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+))""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^'"]+)""", re.DOTALL)


class QueryError(CatalogError):
    """A query that cannot be parsed; the message marks the position."""

    def __init__(self, text: str, at: int, problem: str) -> None:
        message = f"query, character {at + 1}: {problem}: {text[:at]}^{text[at:]}"
        super().__init__(" ".join(message.split()))  # on one line


@dataclass(frozen=True)
class Name:
    """A name as typed.

    Attributes:
        text: The name without its prefix.
        kind: Prefix: "flag", "last", "best", or "" without one.
        at: Offset in the query.
    """

    text: str
    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.kind else self.text


@dataclass(frozen=True)
class Comparison:
    """A name compared with a value; without an operator, a test that the run has the name."""

    name: Name
    operator: str = ""
    value: str = ""
    at: int = 0  # offset of the value in the query


@dataclass(frozen=True)
class Not:
    """Negation of a term."""

    term: Term


@dataclass(frozen=True)
class BooleanTerm:
    """Conjunction (`and`) or disjunction (`or`) of terms."""

    word: str
    terms: tuple[Term, ...]


Term = Comparison | Not | BooleanTerm
Truth = bool | None  # None: undecided until more of the run is read


def parse(text: str) -> Term:
    """Parse a query.

    Raises:
        QueryError: The text is not a valid query.
    """
    return _Parser(text).query()


def comparisons(term: Term, *, under_not: bool = True) -> Iterator[Comparison]:
    """Yield the comparisons of a query, from left to right.

    Args:
        term: The query.
        under_not: Include comparisons below a `not`.
    """
    if isinstance(term, Comparison):
        yield term
    elif isinstance(term, BooleanTerm):
        for child in term.terms:
            yield from comparisons(child, under_not=under_not)
    elif under_not:
        yield from comparisons(term.term)


def evaluate(term: Term, test: Callable[[Comparison], Truth]) -> Truth:
    """Evaluate a query in Kleene's three-valued logic.

    Args:
        term: The query.
        test: Evaluates a comparison.
    """
    if isinstance(term, Comparison):
        return test(term)
    if isinstance(term, Not):
        value = evaluate(term.term, test)
        return None if value is None else not value
    decisive = term.word == "or"  # one true term decides an `or`, one false term an `and`
    undecided = False
    for child in term.terms:
        value = evaluate(child, test)
        if value is decisive:
            return decisive
        undecided |= value is None
    return None if undecided else not decisive


@dataclass(frozen=True)
class _Token:
    kind: str  # "operator", "bracket", "word" or "end"
    text: str
    at: int
    plain: str = ""  # a word up to its first quote

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.plain == self.text and self.text.lower() == word


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._tokens())
        self.next = 0
        self.depth = 0

    def query(self) -> Term:
        if self.tokens[0].kind == "end":
            raise QueryError(self.text, 0, "a condition is expected, such as lr>1e-3")
        term = self._or_expression()
        token = self.tokens[self.next]
        if token.text == ")":
            raise QueryError(self.text, token.at, "this parenthesis closes none")
        if token.kind != "end":
            raise QueryError(self.text, token.at, "`and` or `or` is expected")
        return term

    def _or_expression(self) -> Term:
        return self._chain("or", lambda: self._chain("and", self._term))

    def _chain(self, word: str, part: Callable[[], Term]) -> Term:
        terms = [part()]
        while self.tokens[self.next].is_word(word):
            self.next += 1
            terms.append(part())
        return terms[0] if len(terms) == 1 else BooleanTerm(word, tuple(terms))

    def _term(self) -> Term:
        token = self._take()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise QueryError(self.text, token.at, f"more than {MAX_DEPTH} levels")
        if token.is_word("not"):
            term: Term = Not(self._term())
        elif token.text == "(" and token.kind == "bracket":
            term = self._or_expression()
            closing = self._take()
            if closing.kind != "bracket" or closing.text != ")":
                problem = "`)`, `and` or `or` is expected"
                raise QueryError(self.text, closing.at, problem)
        else:
            term = self._comparison(token)
        self.depth -= 1
        return term

    def _comparison(self, token: _Token) -> Term:
        if token.kind != "word" or any(token.is_word(word) for word in _WORDS):
            raise QueryError(self.text, token.at, "a name is expected")
        kind = _KIND.match(token.text)
        if kind and kind.end() > len(token.plain):  # a quoted prefix is part of the name
            kind = None
        bare = token.text[kind.end() :] if kind else token.text
        name = Name(bare, kind[1] if kind else "", token.at)
        operator = self.tokens[self.next]
        if operator.kind == "word" and not any(operator.is_word(w) for w in ("and", "or")):
            signs = " ".join(OPERATORS)
            raise QueryError(self.text, operator.at, f"one of {signs} is expected after {name}")
        if operator.kind != "operator":
            return Comparison(name)
        self.next += 1
        value = self._take()
        if value.kind != "word":
            problem = f"a value is expected after {operator.text}"
            if value.kind == "operator":
                problem += f", not {value.text} (in a value it needs quotes)"
            raise QueryError(self.text, value.at, problem)
        return Comparison(name, operator.text, value.text, value.at)

    def _take(self) -> _Token:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)  # stays at the end token
        return token

    def _tokens(self) -> Iterator[_Token]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise QueryError(self.text, at, _unexpected(self.text[at]))
            kind = str(match.lastgroup)
            raw, at = match[kind], match.end()
            parts = list(_PART.finditer(raw)) if kind == "word" else []
            text = "".join(p[3] or re.sub(r"\\(.)", r"\1", p[1] or p[2] or "") for p in parts)
            plain = parts[0][3] or "" if parts else ""
            yield _Token(kind, text if parts else raw, match.start(kind), plain)
        yield _Token("end", "", end)


def _unexpected(character: str) -> str:
    if character in "\"'":
        return "this quote is not closed"
    return "`!` is only allowed in !=; use `not`" if character == "!" else "not understood"
