"""What was passed to ``check``, when it is not a function or class of the expected shape: a sentence with the cure."""

import inspect
import types

from ampedu.exercises import compare, plain, spec


def swapped(id, answer) -> bool:
    """Whether the two arguments of check were exchanged."""
    return not isinstance(id, str) and isinstance(answer, str)


def problem(ex, signature: dict, answer) -> str | None:
    """Why this object cannot be the answer, in words, or None. ``signature``: ExerciseData.signature, may be empty."""
    wanted = signature.get("kind", "function")
    cure = f'Pass the {wanted} itself, without parentheses: check("{ex.id}", {ex.answer})'
    if answer is None:
        return f"The answer is None. {cure}"
    if isinstance(answer, types.ModuleType):
        return f"The answer is the module {answer.__name__}. {cure}"
    if wanted == "class" and type(answer).__name__ == ex.answer:
        return f"The answer is an object of the class {ex.answer}. {cure}"
    if not callable(answer):
        return f"The answer is {_what(answer)}, not a {wanted}. {cure}"
    if wanted == "class" and not isinstance(answer, type):
        return f"The answer is a function, not a class. {cure}"
    if wanted == "function" and isinstance(answer, type):
        return f"The answer is the class {answer.__name__}, not a function. {cure}"
    return _parameters(ex, signature, answer)


def belongs_elsewhere(ex, answer) -> str | None:
    """A sentence if the answer has the name of another exercise's answer in the same lab, or None."""
    name = getattr(answer, "__name__", None)
    for other in spec.of_stem(ex.stem):
        if name == other.answer != ex.answer:
            return f"you passed `{name}`, the answer to {other.id}. This check is for `{ex.answer}`."
    return None


def _what(answer):
    try:
        return f"{compare.show(plain.freeze(answer), 60)} of type {type(answer).__name__}"
    except plain.NotPlain:
        return f"an object of type {type(answer).__name__}"


def describe_signature(answer) -> dict:
    """The record that ``problem`` compares with.

    Kind, text of the signature, numbers of required and of positional parameters.
    """
    shape = inspect.signature(answer)
    positional = [p for p in shape.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [str(p).split(":")[0].split("=")[0].strip() for p in shape.parameters.values()]
    return {
        "kind": "class" if isinstance(answer, type) else "function",
        "text": f"({', '.join(names)})",
        "required": sum(p.default is p.empty for p in positional),
        "positional": len(positional),
    }


def _parameters(ex, signature, answer):
    if "required" not in signature:
        return None
    try:
        shape = inspect.signature(answer)
    except (ValueError, TypeError):
        return None
    try:
        shape.bind(*[None] * signature["required"])
        shape.bind(*[None] * signature["positional"])
    except TypeError:
        own = describe_signature(answer)["text"]
        return f"{ex.answer} takes {signature['text']}; yours takes {own}. Restore the first line of the lab's stub."
    return None
