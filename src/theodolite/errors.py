"""One class a kind of user mistake.  Each message is one line that says what is wrong and what to do."""


class TheodoliteError(Exception):
    """Any mistake that a user can make or mend; the command line prints it on one line and exits with 2."""


class UnknownName(TheodoliteError):
    """A workload, GPU, model, term, family, key, rank or tensor that does not exist here."""


class WorkloadError(TheodoliteError):
    """A workload whose sizes or cascade make no sense."""


class TextError(TheodoliteError):
    """A tree, a schedule or a file that cannot be read; the message names the line."""


class RuleBroken(TheodoliteError):
    """A tree that reads well and breaks a named rule of `check`."""


class Infeasible(TheodoliteError):
    """A mapping that the GPU, or the model asked for, has no room or no words for."""


class Unsupported(TheodoliteError):
    """A valid tree that no realisation or lowering rule covers yet; the message names the rule."""


class KernelError(TheodoliteError):
    """A kernel that does not load, compile or run, or not within its time limit."""


class Drift(TheodoliteError):
    """Something frozen is no longer what its manifest says."""


class RunError(TheodoliteError):
    """A run directory, a recording or a device that cannot be used."""


def one_of(kind: str, name: str, known: object) -> UnknownName:
    """The error for a name that is not among the known ones."""
    names = ", ".join(str(k) for k in known)  # type: ignore[attr-defined]
    return UnknownName(f"unknown {kind} {name!r}: use one of {names}")


def plain_reason(error: Exception) -> str:
    """Why a file cannot be used, in words and without its path, which the message begins with."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a directory"
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 text from byte {error.start:,} on"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())
