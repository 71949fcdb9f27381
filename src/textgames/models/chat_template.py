"""A model's chat template, cut into the pieces that a conversation turn by turn is built from.

Tokens that a model wrote are never decoded and tokenized again: what comes between two replies is tokenized by
itself and appended. So the tokens that are trained on are those that were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runcatalog import record
from textgames.games.wording import THINK

_ASKED, _SAID, _AGAIN = "\x01asked\x01", "\x01said\x01", "\x01again\x01"


@dataclass(frozen=True)
class Pieces:
    """What stands around the messages of a conversation, as text.

    Attributes:
        begin: Before the first message of the user.
        reply: Between a message of the user and the model's reply.
        turn: Between a reply and the user's next message; it begins with what ends a reply.
        end: What ends a reply, a special token: the model says it, or it is said for it. It is the template's, which
            is not always `eos_token` (Gemma's is not).
    """

    begin: str
    reply: str
    turn: str
    end: str

    def first(self, prompt: str) -> str:
        """All that stands before the first reply."""
        return f"{self.begin}{prompt}{self.reply}"

    def next(self, message: str, *, ended: bool) -> str:
        """All that stands between a reply and the next one.

        Args:
            message: The user's.
            ended: Whether the reply has its end already.
        """
        return f"{self.turn.removeprefix(self.end) if ended else self.turn}{message}{self.reply}"


def pieces(tokenizer: Any, *, think: bool = False) -> Pieces:
    """Reads the pieces off a tokenizer's own chat template.

    There is no system message: one that the template would put in by itself (Qwen2.5's does) is left out.

    Args:
        tokenizer: Of `transformers`.
        think: The reply's `<think>` is opened for the model.

    Raises:
        UserError: There is no chat template, no token that ends a reply, or the template changes messages.

    What comes out is to be tokenized with `add_special_tokens=False`: a first token such as Llama's is in it.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise record.UserError(
            "--model: its tokenizer has no chat template; take a model that was made for conversations"
        )
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", _ASKED), ("assistant", _SAID), ("user", _AGAIN))
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    try:
        begin, rest = whole.split(_ASKED)
        reply, rest = rest.split(_SAID)
        turn, again = rest.split(_AGAIN)
    except ValueError:
        raise record.UserError(
            "--model: its chat template does not give each message once, as it is"
        ) from None
    # What a template puts behind a user's last message is what it puts before a reply, or that and something
    # of the model's own habits, such as an opened thought.
    reply = again if again.startswith(reply) else reply
    opens = think and not reply.rstrip().endswith(THINK)
    end, turn = _ending(turn, tokenizer)
    return Pieces(_without_system(begin, turn, end, tokenizer), reply + THINK * opens, turn, end)


def _ending(turn: str, tokenizer: Any) -> tuple[str, str]:
    """The special token that ends a reply, and what stands after a reply, which begins with it."""
    special = [each.content for each in tokenizer.added_tokens_decoder.values() if each.special]
    found = [each for each in special if turn.lstrip().startswith(each)]
    if found:
        return max(found, key=len), turn.lstrip()
    if not tokenizer.eos_token:
        raise record.UserError("--model: its tokenizer has no token that ends a reply (eos_token)")
    return tokenizer.eos_token, tokenizer.eos_token + turn


def _without_system(begin: str, turn: str, end: str, tokenizer: Any) -> str:
    """What stands before the first message of the user, without a system message of the template's."""
    header = turn.removeprefix(end).lstrip()
    first = tokenizer.bos_token or ""
    if begin.endswith(header):
        return (first if first and begin.startswith(first) else "") + header
    return begin
