"""How a model is named: a network of the zoo, a function of the user's, a file of torch.export.

A user's code runs when the user names it, and at no other time.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import did_you_mean
from flexlegion.base.users_code import first_line, line_of
from flexlegion.model.reference import Reference
from flexlegion.networks.sizes import REQUIRED, Size, size_text, sizes_of
from flexlegion.zoo import ZOO, build

if TYPE_CHECKING:
    from flexlegion.model.model import Model

FORMS = "path.py:function, package.module:function, a .pt2 file of torch.export, or an .onnx file"
HELP = f"one of {', '.join(ZOO)}; or your own: {FORMS}"

# What a user's function may take beside its sizes.
_BATCH_SIZE, _SEED = "batch_size", "seed"
_MAX_CODE = 4 << 20  # bytes of a .py file: what the compiler makes of it is a hundred times larger


@typed
def load_model(
    name: str,
    batch_size: int | None = None,
    sizes: Mapping[str, Any] | None = None,
    seed: int | None = None,
    verify: bool = True,
) -> Model:
    """The model that a reference names, not yet compiled.

    Parameters
    ----------
    name
        A network of the zoo, as in ``lenet``; ``path.py:function`` or ``package.module:function``,
        a function that returns a `Model`, or a ``torch.nn.Module`` with a tuple of example inputs;
        ``path.py`` alone for its function ``model``, or for its only one; a ``.pt2`` file of
        torch.export; or an ``.onnx`` file. The function takes sizes as keywords, and may take
        ``batch_size`` and ``seed``.
    batch_size
        Samples an iteration; by default the model's own.
    sizes
        Other sizes than the model's own, by name; texts are read as ``--size`` reads them.
    seed
        Of the model; by default its own.
    verify
        Whether a model that is imported is compared with what it is imported from, see
        `flexlegion.from_torch`.

    Returns
    -------
    Model
        Its `reference` says how it was named.

    Raises
    ------
    UserError
        If there is no such model or size, or if a user's function raises, or returns something
        else.

    Examples
    --------
    >>> model = load_model("rnnlm", batch_size=32, sizes={"steps": 10})
    """
    return target_of(name).load(batch_size, sizes or {}, seed, verify)


@dataclass(frozen=True)
class Wanted:
    """Of a model to build; what is None is the model's own."""

    batch_size: int | None
    sizes: Mapping[str, Any]
    seed: int | None


class Target(ABC):
    """What a reference leads to.

    Parameters
    ----------
    name
        The reference, in full.
    sizes
        What it takes.
    """

    def __init__(self, name: str, sizes: Mapping[str, Size]) -> None:
        self.name = name
        self.sizes = dict(sizes)

    def load(
        self,
        batch_size: int | None,
        sizes: Mapping[str, Any],
        seed: int | None,
        verify: bool = True,
    ) -> Model:
        """Its model; see `load_model`."""
        given = {name: self.size(name, value, f"size {name}") for name, value in sizes.items()}
        for size in self.sizes.values():
            if size.default is REQUIRED and size.name not in given:
                raise UserError(
                    f"{self.name} needs a {size.name}; give it (--size {size.name}=...)"
                )
        model = self.verified(verify, Wanted(batch_size, given, seed))
        if batch_size is not None and model.batch_size != batch_size:
            raise UserError(
                f"{self.name} has a batch size of its own, {model.batch_size}; to choose another, "
                f"let it take {_BATCH_SIZE}"
            )
        if seed is not None:
            model.seed = seed
        again = partial(self.load, sizes=given, seed=seed, verify=verify)
        model.reference = Reference(self.name, given, again)
        return model

    def verified(self, verify: bool, wanted: Wanted) -> Model:
        """Its model; one that is imported is compared with what it is imported from, or not."""
        if verify:
            return self._build(wanted)
        from flexlegion.importers import verifying

        with verifying(False):
            model = self._build(wanted)
        if model.origin is None:
            raise UserError(
                f"{self.name} is not imported, so there is nothing to verify; leave out --no-verify"
            )
        return model

    def size(self, name: str, value: Any, where: str) -> Any:
        """A size's value, of a text as `Size.parse` reads it.

        Raises
        ------
        UserError
            If there is no such size, or it is no such text.
        """
        if name not in self.sizes:
            has = f"it has {', '.join(self.sizes)}" if self.sizes else "it has none"
            hint = did_you_mean(name, self.sizes)
            raise UserError(f"model '{self.name}' has no size '{name[:40]}'{hint}; {has}")
        size = self.sizes[name]
        return size.parse(value, where) if isinstance(value, str) else size.checked(value, where)

    @abstractmethod
    def _build(self, wanted: Wanted) -> Model: ...


def target_of(name: str) -> Target:
    """What a reference leads to; a user's module is loaded for it, though no function called.

    Raises
    ------
    UserError
        If there is no such thing.
    """
    if name in ZOO:
        return _Zoo(name)
    path, colon, function = name.rpartition(":")
    if not colon:
        path, function = name, ""
    if path.endswith(".pt2") and not function:
        return _Exported(path)
    if path.endswith(".onnx") and not function:
        return _Onnx(path)
    if path.endswith(".py"):
        return _function(path, function, _loaded_file(path))
    if function:
        return _function(path, function, _loaded_module(path))
    raise UserError(f"unknown model '{name}'{did_you_mean(name, ZOO)}; choose {HELP}")


def is_code(name: str) -> bool:
    """Whether a reference leads to code or a file of the user's."""
    return name not in ZOO


def same_target(one: str, other: str) -> bool:
    """Whether two references mean the same, of files as well where they are seen from elsewhere."""
    if one == other:
        return True
    ends = [name.rpartition(":") for name in (one, other)]
    files = [Path(path).name for path, _, _ in ends]
    return ends[0][2] == ends[1][2] and files[0] == files[1] and files[0].endswith(".py")


class _Zoo(Target):
    def __init__(self, name: str) -> None:
        super().__init__(name, sizes_of(ZOO[name].build, ("model",)))

    def _build(self, wanted: Wanted) -> Model:
        return build(self.name, wanted.batch_size, seed=wanted.seed or 0, **wanted.sizes)


class _Exported(Target):
    """A ``.pt2`` file."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {})
        if not os.path.exists(path):
            raise UserError(f"{path}: no such file; give one that torch.export.save has written")
        from flexlegion.data.reading import check_archive

        check_archive(Path(path), "an exported program")

    def _build(self, wanted: Wanted) -> Model:
        if importlib.util.find_spec("torch") is None:
            raise UserError(
                f"{self.name}: reading it needs PyTorch, which is not installed; pip install torch"
            )
        from flexlegion.importers import pt2

        with _quiet():
            program = pt2.load(Path(self.name))
        with _users_code(self.name, None):
            return _imported(program, None, wanted)


class _Onnx(Target):
    """An ``.onnx`` file, which does not say how many samples an iteration has."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {})
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such file; give one in the ONNX format")

    def _build(self, wanted: Wanted) -> Model:
        if wanted.batch_size is None:
            raise UserError(f"{self.name} needs a batch size; give it (--batch-size)")
        from flexlegion.importers import announce, from_onnx  # which needs the package onnx

        with _quiet():
            model = from_onnx(self.name, batch_size=wanted.batch_size, seed=wanted.seed or 0)
        announce(model)
        return model


class _Function(Target):
    """A function of the user's.

    Parameters
    ----------
    name
        The reference.
    function
        Returns a model.
    folder
        Where its module's own imports are looked up first; None: nowhere else.
    """

    def __init__(self, name: str, function: Callable[..., Any], folder: str | None) -> None:
        super().__init__(name, sizes_of(function, (_BATCH_SIZE, _SEED)))
        self._function = function
        self._folder = folder
        self._extra = sizes_of(function)

    def _build(self, wanted: Wanted) -> Model:
        arguments = dict(wanted.sizes)
        for name, value in ((_BATCH_SIZE, wanted.batch_size), (_SEED, wanted.seed)):
            if name not in self._extra:
                continue
            if value is not None:
                arguments[name] = value
            elif self._extra[name].default is REQUIRED:
                option = name.replace("_", "-")
                raise UserError(f"{self.name} needs a {name}; give it (--{option})")
        with _users_code(self.name, self._folder):
            return self._model(self._function(**arguments), wanted)

    @staticmethod
    def _model(result: Any, wanted: Wanted) -> Model:
        from flexlegion.model.model import Model

        if isinstance(result, Model):
            return result
        if _is_torch(result, "nn.Module"):
            raise UserError(
                "it returns a PyTorch module alone; return (module, example_inputs), the inputs a "
                "tuple of tensors"
            )
        if _is_torch(result, "export.ExportedProgram"):
            return _imported(result, None, wanted)
        if isinstance(result, tuple) and len(result) == 2 and _is_torch(result[0], "nn.Module"):
            return _imported(*result, wanted)
        what = "nothing" if result is None else f"an object of type {type(result).__name__}"
        raise UserError(
            f"it returns {what}; it has to return a flexlegion.Model, or a PyTorch module with "
            "example inputs: (module, example_inputs)"
        )


def _imported(module: Any, inputs: Any, wanted: Wanted) -> Model:
    from flexlegion.importers import announce, from_torch  # which needs torch, which is optional

    with _quiet():
        model = from_torch(module, inputs, batch_size=wanted.batch_size, seed=wanted.seed or 0)
    announce(model)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Meanwhile torch does not print or log what it says again by an exception."""
    logging.disable(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _is_torch(value: Any, name: str) -> bool:
    """Whether it is of a class of PyTorch, which somebody has imported if it is."""
    found: Any = sys.modules.get("torch")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None and isinstance(value, found)


def _loaded_file(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise UserError(f"{path}: no such file; a model of your own is named as path.py:function")
    if file.stat().st_size > _MAX_CODE:
        raise UserError(f"{path}: too large for code, which has at most {_MAX_CODE >> 20} MiB")
    # A name of its own, for the file may be called as a package that others import.
    name = f"flexlegion_model_{file.stem}"
    loader = SourceFileLoader(name, str(file.resolve()))
    module = ModuleType(name)
    module.__file__ = loader.path
    sys.modules[name] = module  # dataclasses and others look their module up
    with _users_code(path, str(file.resolve().parent)):
        loader.exec_module(module)
    return module


def _loaded_module(name: str) -> ModuleType:
    with _users_code(name, os.getcwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is None or not f"{name}.".startswith(f"{e.name}."):
                raise
            missing = e.name
        except (ValueError, TypeError):
            missing = name  # as of "..": no name of a module
    raise UserError(
        f"unknown model '{name}:...': there is no module '{missing}' here or on Python's path; "
        f"choose {HELP}"
    )


def _function(path: str, name: str, module: ModuleType) -> Target:
    """The target that a module's function is; without a name, ``model`` or the only one."""
    functions = {
        key: value
        for key, value in vars(module).items()
        if callable(value) and not key.startswith("_") and _is_of(value, module)
    }
    if not name:
        if "model" not in functions and len(functions) != 1:
            which = f"; it has {', '.join(functions)}" if functions else ", and it has none"
            raise UserError(f"{path}: say which function returns the model: {path}:NAME{which}")
        name = "model" if "model" in functions else next(iter(functions))
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UserError(
            f"{path}: there is no function '{name}'{did_you_mean(name, functions)}; it has "
            f"{', '.join(functions) or 'none'}"
        )
    folder = str(Path(path).resolve().parent) if path.endswith(".py") else os.getcwd()
    return _Function(f"{path}:{name}", found, folder)


def _is_of(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


@contextmanager
def _users_code(where: str, folder: str | None) -> Iterator[None]:
    """Meanwhile a user's code runs: what it prints goes to standard error.

    Raises
    ------
    UserError
        In place of whatever it raises.
    """
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except UserError as e:
        raise UserError(f"{where}: {e}{line_of(e)}") from e
    except SyntaxError as e:
        place = f" ({Path(e.filename).name}, line {e.lineno})" if e.filename else ""
        raise UserError(f"{where}: {type(e).__name__}: {e.msg}{place}") from e
    except (Exception, SystemExit) as e:
        raise UserError(f"{where} raises {type(e).__name__}: {first_line(e)}{line_of(e)}") from e
    finally:
        if folder is not None and folder in sys.path:
            sys.path.remove(folder)


def described_sizes(sizes: Mapping[str, Any]) -> str:
    """For people: ``, steps 10, input_shape 64x64x3``."""
    return "".join(f", {name} {size_text(value)}" for name, value in sizes.items())
