"""JSON texts of dataclasses: one way to write them, and one way to read them with errors for people.

msgspec checks types and ranges, as the annotations give them. The `__post_init__` of a dataclass checks what
the values mean.
"""

import re
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec

from mucudnn._native import Problem, parse_descriptor
from mucudnn.errors import UsageError, raised_here, shown
from mucudnn.input import MOST_BYTES, AnyPath, path_of, read_document, refuse_newer
from mucudnn.output.files import write_lines

T = TypeVar("T")

_MOST = 2**63 - 1
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Measured: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=2**63)]  # the sum of such times is finite

_WIDTH = 110  # the most characters of a line that could be several lines


class Document:
    """The base of a dataclass that a file holds as JSON, with the kind of the document and its version."""

    _kind: ClassVar[str]
    _version: ClassVar[int]
    _most: ClassVar[int]  # bytes of a file

    def __init_subclass__(cls, *, kind: str, version: int, most: int = MOST_BYTES) -> None:
        cls._kind, cls._version, cls._most = kind, version, most

    def text(self) -> str:
        """Return the value as JSON, as `write` writes it."""
        content = {"kind": f"mucudnn {self._kind}", "version": self._version, **to_plain(self)}
        return _lay_out(content, "\n") + "\n"

    __str__ = text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value that a text describes.

        Raises UsageError, which names the field and its value, and NewerFileError for a newer version's text.
        """
        kind = cls._kind
        try:
            content = parse_json(text)
            if kind_of(content) != f"mucudnn {kind}":
                raise UsageError(f"this is not a mucudnn {kind}: its kind is not 'mucudnn {kind}'")
            del content["kind"]
            check_version(kind, content.pop("version", None), cls._version)
            return convert(content, cls)
        except raised_here(ValueError) as error:
            raise UsageError(str(error)) from None

    def write(self, path: AnyPath) -> None:
        """Write the text to a file, whole or not at all. Raises MucudnnError."""
        write_lines(path_of(path, self._kind), [self.text()], f"the {self._kind}")

    @classmethod
    def read(cls, path: AnyPath) -> Self:
        """Read a file.

        Raises MucudnnError with the file and the field that cannot be read, NewerFileError for the file of a
        newer version, and ArgumentTypeError if `path` is not a path.
        """
        return read_document(path, cls._kind, cls.parse, most=cls._most)


def check_version(what: str, version: Any, newest: int) -> None:
    """Raise ValueError for a version that this mucudnn cannot read, and NewerFileError for a newer one."""
    if type(version) is not int or version < newest:
        raise ValueError(f"the version of the {what} is {shown(version)}, must be {newest}: make it again")
    refuse_newer(what, version, newest)


def kind_of(content: Any) -> Any:
    """Return the kind of a document, such as `mucudnn network`, or None for other content."""
    return content.get("kind") if isinstance(content, dict) else None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError with a readable reason."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:  # for other than UTF-8, by its version
        reason = str(error).removeprefix("JSON is malformed: ")
        raise ValueError(f"it is not JSON: {reason}") from None


def convert(content: Any, type_: type[T], *, strict: bool = True) -> T:
    """Return the value of a type that the content of a JSON text describes.

    Unless `strict`, texts may stand for numbers. Raises ValueError, which names the field and its value.
    """
    try:
        named = _with_names_of_fields(content, type_, "")
        return msgspec.convert(named, type_, strict=strict, dec_hook=_parse_text, str_keys=True)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise ValueError(_explain(error, content)) from None


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it: a dataclass as an object of the fields that differ from their defaults.

    Fields that `repr` leaves out are not written. A field `pass_`, named so because of Python's keyword, is
    written as `pass`.
    """
    if isinstance(value, Problem):
        return str(value)
    if known := _fields_of(type(value)):  # type: ignore[arg-type]  # a type is hashable
        entries = ((name, field, getattr(value, field.name)) for name, field in known.items())
        return {name: to_plain(entry) for name, field, entry in entries if entry != field.default}
    if isinstance(value, dict):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    return [to_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


@cache
def _fields_of(kind: type) -> Mapping[str, Field[Any]]:
    """Return the fields of a dataclass by the names that they have in JSON, and none of another type."""
    known = fields(kind) if is_dataclass(kind) else ()
    return {field.name.rstrip("_"): field for field in known if field.repr}


_hints_of = cache(get_type_hints)


def _with_names_of_fields(content: Any, hint: Any, path: str) -> Any:
    """Return content with the names of Python's fields. Raises ValueError for a name that is not a field."""
    if not isinstance(content, dict | list):
        return content
    kind: Any = next(filter(is_dataclass, (hint, *get_args(hint))), None)
    if kind is None:
        return content
    if isinstance(content, list):
        return [_with_names_of_fields(entry, kind, f"{path}[{i}]") for i, entry in enumerate(content)]
    known, hints, renamed = _fields_of(kind), _hints_of(kind), {}
    for name, entry in content.items():
        if name not in known:
            raise ValueError(f"{path or 'it'} has {shown(name)}, which is not one of {', '.join(known)}")
        field = known[name].name
        renamed[field] = _with_names_of_fields(entry, hints[field], f"{path}.{name}" if path else name)
    return renamed


def _parse_text(kind: type, text: Any) -> Any:
    """Return the value of a type that JSON has as a text, for msgspec."""
    if kind is Problem:
        return parse_descriptor(str(text))[0]
    raise NotImplementedError


def _explain(error: msgspec.ValidationError, content: Any) -> str:
    """Return what is wrong with which field, and its value unless the message of a dataclass has it."""
    match = re.fullmatch(r"(.)(.*?)(?: - at `(?:key` in `)?\$\.?(.*)`)?", str(error), re.DOTALL)
    assert match is not None
    text, path = match[1].lower() + match[2], (match[3] or "").replace("pass_", "pass")
    if error.__cause__ is not None:
        return f"{path}: {text}" if path else text
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path.partition("[...]")[0]):
        content = content[name or int(index)]
    return f"{path or 'it'} is {shown(content)}: {text}"


def _lay_out(content: Any, line: str) -> str:
    """Return JSON on one line, or on several if it is long. A list of numbers or of texts is always one line.

    `line` begins a new line with its indentation.
    """
    text = msgspec.json.format(msgspec.json.encode(content), indent=0).decode()
    if len(text) <= _WIDTH:
        return text
    inner = f"{line} "
    if isinstance(content, dict):
        parts = [f"{_lay_out(name, inner)}: {_lay_out(entry, inner)}" for name, entry in content.items()]
    elif isinstance(content, list) and isinstance(content[0], dict):
        parts = [_lay_out(entry, inner) for entry in content]
    else:
        return text
    return f"{text[0]}{inner}{f',{inner}'.join(parts)}{line}{text[-1]}"
