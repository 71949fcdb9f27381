"""The language of `catalog search`: comparisons, and/or/not, parentheses; nothing is evaluated as code.

    query    = all { "or" all }
    all      = term { "and" term }
    term     = "not" term | "(" query ")" | name [ operator value ]
    operator = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"

Names and values are words, quoted where they hold spaces or signs of the language. What a name stands for and
which values it takes is decided in :mod:`runcatalog.query.fields`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runcatalog.model.errors import CatalogError

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
MAX_DEPTH = 50  # parentheses and nots within each other
_WORDS = ("and", "or", "not")
_KIND = re.compile(r"(flag|last|best):(?=.)", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<operator>!=|<=|>=|[=<>~])|(?P<bracket>[()])
    |(?P<word>(?:[^\s()'"=!<>~]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+))""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^'"]+)""", re.DOTALL)


class QueryError(CatalogError):
    """A query that cannot be understood; the message shows the place."""

    def __init__(self, text: str, at: int, problem: str) -> None:
        told = f"query, character {at + 1}: {problem}: {text[:at]}^{text[at:]}"
        super().__init__(" ".join(told.split()))  # one line, whatever was typed


@dataclass(frozen=True)
class Name:
    """A name as typed.

    Attributes:
        text: Without its kind.
        kind: "flag", "last" or "best" where one is said, else "".
        at: Where it begins in the query.
    """

    text: str
    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.kind else self.text


@dataclass(frozen=True)
class Comparison:
    """A name compared with a value, or ("" for the operator) whether a run has it."""

    name: Name
    operator: str = ""
    value: str = ""
    at: int = 0  # where the value begins


@dataclass(frozen=True)
class Not:
    """The opposite."""

    term: Term


@dataclass(frozen=True)
class Several:
    """All of the terms (`and`), or any of them (`or`)."""

    word: str
    terms: tuple[Term, ...]


Term = Comparison | Not | Several
Truth = bool | None  # None: not known without what was not read


def parse(text: str) -> Term:
    """Returns the query that a text stands for.

    Raises:
        QueryError: It is none.
    """
    return _Parser(text).query()


def comparisons(term: Term, *, under_not: bool = True) -> Iterator[Comparison]:
    """Yields the comparisons of a query, from left to right.

    Args:
        term: The query.
        under_not: Those that a `not` turns round, too.
    """
    if isinstance(term, Comparison):
        yield term
    elif isinstance(term, Several):
        for each in term.terms:
            yield from comparisons(each, under_not=under_not)
    elif under_not:
        yield from comparisons(term.term)


def truth(term: Term, test: Callable[[Comparison], Truth]) -> Truth:
    """Returns what a query comes to (Kleene's three-valued logic).

    Args:
        term: The query.
        test: What a comparison comes to.
    """
    if isinstance(term, Comparison):
        return test(term)
    if isinstance(term, Not):
        known = truth(term.term, test)
        return None if known is None else not known
    decides = term.word == "or"  # a true one decides an `or`, a false one an `and`
    open_ = False
    for each in term.terms:
        known = truth(each, test)
        if known is decides:
            return decides
        open_ |= known is None
    return None if open_ else not decides


@dataclass(frozen=True)
class _Token:
    kind: str  # "operator", "bracket", "word" or "end"
    text: str
    at: int
    plain: str = ""  # a word's letters up to its first quote

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.plain == self.text and self.text.lower() == word


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._split())
        self.next = 0
        self.depth = 0

    def query(self) -> Term:
        if self.tokens[0].kind == "end":
            raise QueryError(self.text, 0, "a condition is expected, such as lr>1e-3")
        found = self._any()
        token = self.tokens[self.next]
        if token.text == ")":
            raise QueryError(self.text, token.at, "this parenthesis closes none")
        if token.kind != "end":
            raise QueryError(self.text, token.at, "`and` or `or` is expected")
        return found

    def _any(self) -> Term:
        return self._several("or", lambda: self._several("and", self._term))

    def _several(self, word: str, part: Callable[[], Term]) -> Term:
        terms = [part()]
        while self.tokens[self.next].is_word(word):
            self.next += 1
            terms.append(part())
        return terms[0] if len(terms) == 1 else Several(word, tuple(terms))

    def _term(self) -> Term:
        token = self._take()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise QueryError(self.text, token.at, f"more than {MAX_DEPTH} levels")
        if token.is_word("not"):
            found: Term = Not(self._term())
        elif token.text == "(" and token.kind == "bracket":
            found = self._any()
            closing = self._take()
            if closing.kind != "bracket" or closing.text != ")":
                problem = "`)`, `and` or `or` is expected"
                raise QueryError(self.text, closing.at, problem)
        else:
            found = self._comparison(token)
        self.depth -= 1
        return found

    def _comparison(self, token: _Token) -> Term:
        if token.kind != "word" or any(token.is_word(word) for word in _WORDS):
            raise QueryError(self.text, token.at, "a name is expected")
        kind = _KIND.match(token.text)
        if kind and kind.end() > len(token.plain):  # in quotes: part of the name
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
        self.next = min(self.next + 1, len(self.tokens) - 1)  # the end is never passed
        return token

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise QueryError(self.text, at, _strange(self.text[at]))
            kind = str(match.lastgroup)
            raw, at = match[kind], match.end()
            pieces = list(_PIECE.finditer(raw)) if kind == "word" else []
            text = "".join(p[3] or re.sub(r"\\(.)", r"\1", p[1] or p[2] or "") for p in pieces)
            plain = pieces[0][3] or "" if pieces else ""
            yield _Token(kind, text if pieces else raw, match.start(kind), plain)
        yield _Token("end", "", end)


def _strange(character: str) -> str:
    if character in "\"'":
        return "this quote is not closed"
    return "`!` is part of != alone; `not` is the word" if character == "!" else "not understood"
