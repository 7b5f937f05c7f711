"""Says in one sentence what the parser of the command line refused, and where help is."""

import re
from difflib import get_close_matches
from typing import Any

_NEGATIVE = re.compile(r"-[\d.]")  # the parser reads "-1.5" as the options -1, -. and -5
MONEY = frozenset({"amount", "price"})


def explain_parser_error(error: Exception) -> str:
    """Returns the sentence, or "" for an error of another kind.

    A group without a command prints its whole help instead, so it is none of these errors.
    """
    context: Any = getattr(error, "ctx", None)
    message = getattr(error, "format_message", None)
    if context is None or not callable(message) or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    path = context.command_path
    option = getattr(error, "option_name", None)
    if type(error).__name__ != "NoSuchOption" or option is None:
        told = str(message()).strip().rstrip(".")
        return f"{told[:1].lower()}{told[1:]}; see `{path} --help`"
    field = _money_argument(context.command) if _NEGATIVE.fullmatch(str(option)) else ""
    if field:
        return f"{field}: an amount below zero is not possible; write one above zero, such as 1.25"
    known = [name for item in context.command.params for name in (*item.opts, *item.secondary_opts)]
    near = get_close_matches(option, [name for name in known if name.startswith("--")], n=1)
    hint = f"did you mean {near[0]}?" if near else f"see `{path} --help`"
    return f"{path} has no option {str(option)[:40]}; {hint}"


def _money_argument(command: Any) -> str:
    """Returns the name of the command's argument that is an amount of money, or ""."""
    arguments = (item.name for item in command.params if item.param_type_name == "argument")
    return next((name for name in arguments if name in MONEY), "")
