"use strict";
// Parser of `catalog search` queries, as `runcatalog.query.language`:
//
//     query    = all { "or" all }
//     all      = term { "and" term }
//     term     = "not" term | "(" query ")" | name [ operator value ]
//     operator = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"

// A query that cannot be parsed or has an unknown name; the message marks the position.
class QueryError extends Error {
  constructor(text, at, problem) {
    const characters = [...text.slice(0, at)].length + 1;
    const message = `query, character ${characters}: ${problem}: ${text.slice(0, at)}^${text.slice(at)}`;
    super(message.split(/\s+/).filter(Boolean).join(" "));
  }
}

const query = {
  OPERATORS: ["=", "!=", "<", "<=", ">", ">=", "~"],
  MAX_DEPTH: 50, // nested parentheses and nots
  TOKEN:
    /\s*(?:(?<operator>!=|<=|>=|[=<>~])|(?<bracket>[()])|(?<word>(?:[^\s()'"=!<>~]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+))/suy,
  PART: /"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^'"]+)/gsu,
  KIND: /^(flag|last|best):(?=.)/su,

  // Return the term of a query: {comparison}, {not: term} or {word: "and" or "or", terms}.
  parse(text) {
    return new QueryParser(text).query();
  },

  // Return the comparisons of a term, from left to right.
  comparisons(term, underNot = true) {
    if (term.name) return [term];
    if (term.terms) return term.terms.flatMap((each) => query.comparisons(each, underNot));
    return underNot ? query.comparisons(term.not) : [];
  },

  // Return whether a term holds; `test` decides a comparison.
  holds(term, test) {
    if (term.name) return test(term);
    if (term.not) return !query.holds(term.not, test);
    const each = (child) => query.holds(child, test);
    return term.word === "or" ? term.terms.some(each) : term.terms.every(each);
  },

  tokens(text) {
    const found = [];
    const end = text.trimEnd().length;
    for (let at = 0; at < end;) {
      query.TOKEN.lastIndex = at;
      const match = query.TOKEN.exec(text);
      if (match === null) {
        at += text.slice(at).length - text.slice(at).trimStart().length;
        throw new QueryError(text, at, query.unexpected(text[at]));
      }
      const [kind, raw] = Object.entries(match.groups).find(([, value]) => value !== undefined);
      at = query.TOKEN.lastIndex;
      const parts = kind === "word" ? [...raw.matchAll(query.PART)] : [];
      const unquoted = (part) => part[3] || (part[1] || part[2] || "").replace(/\\(.)/gsu, "$1");
      const word = parts.length ? parts.map(unquoted).join("") : raw;
      found.push({ kind, text: word, at: at - raw.length, plain: parts.length ? parts[0][3] || "" : "" });
    }
    return [...found, { kind: "end", text: "", at: end, plain: "" }];
  },

  unexpected(character) {
    if (character === '"' || character === "'") return "this quote is not closed";
    return character === "!" ? "`!` is only allowed in !=; use `not`" : "not understood";
  },
};

class QueryParser {
  constructor(text) {
    this.text = text;
    this.tokens = query.tokens(text);
    this.next = 0;
    this.depth = 0;
  }

  query() {
    if (this.tokens[0].kind === "end") this.fail(0, "a condition is expected, such as lr>1e-3");
    const term = this.anyOf();
    const token = this.tokens[this.next];
    if (token.text === ")") this.fail(token.at, "this parenthesis closes none");
    if (token.kind !== "end") this.fail(token.at, "`and` or `or` is expected");
    return term;
  }

  anyOf() {
    return this.chain("or", () => this.chain("and", () => this.term()));
  }

  chain(word, part) {
    const terms = [part()];
    while (QueryParser.isWord(this.tokens[this.next], word)) {
      this.next++;
      terms.push(part());
    }
    return terms.length === 1 ? terms[0] : { word, terms };
  }

  term() {
    const token = this.take();
    if (++this.depth > query.MAX_DEPTH) this.fail(token.at, `more than ${query.MAX_DEPTH} levels`);
    let term;
    if (QueryParser.isWord(token, "not")) {
      term = { not: this.term() };
    } else if (token.kind === "bracket" && token.text === "(") {
      term = this.anyOf();
      const closing = this.take();
      if (closing.kind !== "bracket" || closing.text !== ")")
        this.fail(closing.at, "`)`, `and` or `or` is expected");
    } else {
      term = this.comparison(token);
    }
    this.depth--;
    return term;
  }

  comparison(token) {
    if (token.kind !== "word" || ["and", "or", "not"].some((word) => QueryParser.isWord(token, word))) {
      this.fail(token.at, "a name is expected");
    }
    const match = query.KIND.exec(token.text);
    const kind = match && match[0].length <= token.plain.length ? match[1] : ""; // quoted, it is part of the name
    const text = kind ? token.text.slice(kind.length + 1) : token.text;
    const name = { text, kind, at: token.at, title: kind ? `${kind}:${text}` : text };
    const operator = this.tokens[this.next];
    if (operator.kind === "word" && !["and", "or"].some((word) => QueryParser.isWord(operator, word))) {
      this.fail(operator.at, `one of ${query.OPERATORS.join(" ")} is expected after ${name.title}`);
    }
    if (operator.kind !== "operator") return { name, operator: "", value: "", at: 0 };
    this.next++;
    const value = this.take();
    if (value.kind !== "word") {
      const more = value.kind === "operator" ? `, not ${value.text} (in a value it needs quotes)` : "";
      this.fail(value.at, `a value is expected after ${operator.text}${more}`);
    }
    return { name, operator: operator.text, value: value.text, at: value.at };
  }

  take() {
    const token = this.tokens[this.next];
    this.next = Math.min(this.next + 1, this.tokens.length - 1); // stays at the end
    return token;
  }

  fail(at, problem) {
    throw new QueryError(this.text, at, problem);
  }

  static isWord(token, word) {
    return token.kind === "word" && token.plain === token.text && token.text.toLowerCase() === word;
  }
}
