"""Chat templates: a conversation to the text that the model was trained on.

A template comes with the model, so it is foreign code: it runs in jinja2's immutable sandbox. Options as
transformers sets them (`chat_template_utils._compile_jinja_template`), since templates are written for those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.errors import UsageError

Message = Mapping[str, str]


def render_chat(template: str, messages: Sequence[Message], special_tokens: Mapping[str, str]) -> str:
    """Render messages and the opening of the answer.

    Args:
        template: jinja2 source.
        messages: each with "role" and "content".
        special_tokens: "bos_token", "eos_token" and so on, to their text.

    Raises:
        UsageError: a message is malformed, or the template is or refuses the messages.
    """
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UsageError(f"message {index} needs a text {key!r}; it is {dict(message)!r}.")
    if not messages:
        raise UsageError("a chat needs at least one message.")
    try:
        return _compiled(template).render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **special_tokens,
        )
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(
            f"the model's chat template is not valid jinja2 (line {error.lineno}: {error})."
        ) from error
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(f"the model's chat template refuses these messages: {error}.") from error


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _to_json(value: object, **options: Any) -> str:
    # jinja2's own filter escapes HTML, which a model has never seen.
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
