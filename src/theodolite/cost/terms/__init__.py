"""The terms, one a file.  A file with a `TERM` in this folder is found by itself; nothing else needs an edit."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from theodolite.cost.terms.term import Term
from theodolite.errors import one_of


@cache
def terms() -> dict[str, Term]:
    """Every term by name, in the order in which they are added one by one."""
    found: list[Term] = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "TERM"):
            found.append(module.TERM)
    return {t.name: t for t in sorted(found, key=lambda t: (t.order, t.name))}


def term(name: str) -> Term:
    """The term of that name; UnknownName for another."""
    if name not in terms():
        raise one_of("term", name, terms())
    return terms()[name]
