"""A griffe extension for this project: the format of its docstrings, and the constructors of ``Struct`` classes."""

from __future__ import annotations

import re

import griffe

__all__ = ["Source", "as_markdown", "fields"]

_LITERAL_BLOCK = re.compile(r"(?m)^(.*?)[ ]*::$(?=\n\n[ ]+\S)")
_SEVERAL_NAMES = re.compile(r"(?m)^[ ]+\w+(?:, \w+)+(?=: )")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def as_markdown(docstring: str) -> str:
    """Return a docstring as griffe and Markdown understand it.

    The colons that announce a block of code are removed, since Markdown recognizes it by its indentation. Several names
    that are described together, ``a, b: what they are``, have no space between them: griffe expects a type after a
    space.
    """
    text = _LITERAL_BLOCK.sub(lambda line: f"{line[1]}:" if line[1].strip() else "", docstring)
    return _SEVERAL_NAMES.sub(lambda names: names[0].replace(", ", f",{_NO_BREAK}"), text)


def fields(struct: griffe.Class) -> list[griffe.Parameter]:
    """Return the fields of a ``msgspec.Struct``, inherited ones first; empty for any other class."""
    classes = [*reversed(struct.mro()), struct]
    if not any(str(base).endswith("Struct") for each in classes for base in each.bases):
        return []
    found = {name: member for each in classes for name, member in each.attributes.items() if _is_field(member)}
    kind = griffe.ParameterKind.keyword_only
    return [
        griffe.Parameter(name, annotation=member.annotation, kind=kind, default=member.value)
        for name, member in found.items()
    ]


def _is_field(member: griffe.Attribute) -> bool:
    if member.is_alias or member.annotation is None or member.name.startswith("_"):
        return False
    return "instance-attribute" in member.labels  # and neither a property nor a ``ClassVar``


class Source(griffe.Extension):
    """Gives mkdocstrings docstrings as Markdown, and constructors of structs."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Change an object's docstring once griffe has read it."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Give every struct its ``__init__``, once the whole package is known."""
        for module in _modules(pkg):
            for struct in module.classes.values():
                if not struct.is_alias and "__init__" not in struct.members and (found := fields(struct)):
                    made = griffe.Function("__init__", parameters=griffe.Parameters(griffe.Parameter("self"), *found))
                    struct.set_member("__init__", made)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    found = [each for inner in module.modules.values() if not inner.is_alias for each in _modules(inner)]
    return [module, *found]
