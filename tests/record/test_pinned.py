"""What can be read out of Python source without running it, and that nothing of it is run."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import RecordError
from repro.record.pinned import Pinned, read
from repro.record.source import NotReadable

HERE = "runs/ladder/launch.py"


def one(text: str, **others: str) -> Pinned:
    """The text as HERE, beside other files: `runs_ladder_shapes` is runs/ladder/shapes.py."""
    files = {HERE: text, **{f"{name.replace('_', '/')}.py": content for name, content in others.items()}}
    return read({path: content.encode() for path, content in files.items()})


def value(text: str, expression: str, **others: str) -> Any:
    return one(text, **others).value(HERE, expression).value


def refusal(text: str, expression: str = "X", **others: str) -> str:
    with pytest.raises(NotReadable) as caught:
        one(text, **others).value(HERE, expression)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "7",
            "-3.5",
            "'a' 'b'",
            "True",
            "None",
            "b'x'",
            "1_000_000",
            "0x10",
            "(1, 2)",
            "[1, 'a', None]",
            "{1, 2}",
            "()",
        ),
        *("{'a': 1, 'b': {'c': (2,)}}", "{**{'a': 1}, 'a': 2}", "[*(1, 2), 3]", "1 + 2 * 3 - 4 / 5", "7 // 2 + 7 % 4"),
        *(
            "2 ** 40",
            "2 ** -1",
            "10 ** 0.5",
            "-(2 ** 3)",
            "+4",
            "not 0",
            "'a' + 'b'",
            "'ab' * 3",
            "[0] * 4",
            "(1,) + (2,)",
        ),
        *("1 < 2 <= 2", "3 == 4", "'a' in ('a', 'b')", "2 not in {1: 2}", "None is None", "1 if 2 > 1 else 0"),
        *(
            "0 or 5",
            "1 and 0",
            "int('12')",
            "round(2.675, 2)",
            "round(7.5)",
            "max(1, 5, 3)",
            "min([4, 2])",
            "len('abc')",
        ),
        *(
            "f'{3:04d}-{2.5:.2f}-{\"x\"!r}'",
            "f'd{768}'",
            "float('1e-3')",
            "sum([1, 2.5])",
            "abs(-3)",
            "sorted([3, 1, 2])",
        ),
        *("dict(a=1, b=2)", "tuple([1, 2])", "int(791 * 2.5) // 3", "{'a': 1}['a']", "(1, 2, 3)[-1]", "'abc'[0]"),
    ],
)
def test_constant_expressions_have_the_value_that_python_gives_them(text: str) -> None:
    expected = eval(text)  # our own text
    found = value(f"X = {text}\n", "X")
    assert found == expected
    assert type(found) is type(expected)


@given(
    st.recursive(
        st.sampled_from(["1", "2", "7", "-3", "0.5", "2.25", "10"]),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "<"]), inner).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
            st.lists(inner, min_size=1, max_size=3).map(lambda items: f"max({', '.join(items)}, 0)"),
        ),
        max_leaves=12,
    )
)
def test_arithmetic_is_pythons_own(text: str) -> None:
    try:
        expected = eval(text)  # our own text
    except ZeroDivisionError:
        assert "division by zero" in refusal(f"X = {text}") or "modulo" in refusal(f"X = {text}")
        return
    assert value(f"X = {text}", "X") == expected


def test_functions_and_constants_of_math_are_known_under_every_name() -> None:
    text = (
        "import math\nimport math as m\nfrom math import sqrt as root, pi\nX = (math.sqrt(2), m.log(10), root(3), pi)\n"
    )
    assert value(text, "X") == (math.sqrt(2), math.log(10), math.sqrt(3), math.pi)


def test_names_are_followed_and_the_place_is_where_the_value_stands() -> None:
    pinned = one('BATCH = 16 * GPUS\n\nGPUS = 64\nA = B = 5\nC, D = 6, "d"\nE: int = 7\n')
    found = pinned.value(HERE, "BATCH")
    assert (found.value, found.place, found.expression) == (1024, f"{HERE}:1", "16 * GPUS")
    assert [pinned.value(HERE, name).value for name in "ABCDE"] == [5, 5, 6, "d", 7]
    computed = pinned.value(HERE, "GPUS * 2")
    assert (computed.value, computed.place) == (128, f"{HERE}:3")
    assert pinned.names(HERE) == ("BATCH", "GPUS", "A", "B", "C", "D", "E")


def test_a_dictionary_entry_has_the_place_of_the_entry() -> None:
    pinned = one('WEIGHTS = {\n    "news": 0.25,\n    "code": 1 - 0.25,\n}\n')
    found = pinned.value(HERE, 'WEIGHTS["code"]')
    assert (found.value, found.line) == (0.75, 3)
    assert pinned.value(HERE, "WEIGHTS").value == {"news": 0.25, "code": 0.75}
    assert "no key 'poems'" in refusal("W = {'news': 1}", 'W["poems"]')


def test_the_docstring_is_a_value() -> None:
    found = one('"""Prints 1.6B."""\nX = 1\n').value(HERE, "__doc__")
    assert (found.value, found.line) == ("Prints 1.6B.", 1)


CLASSES = """
from __future__ import annotations
import dataclasses
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import ClassVar, NamedTuple

class Transport(Enum):
    WAVE = 1
    RAGGED = 2

class Kind(StrEnum):
    LINEAR = "linear"

@dataclass(frozen=True)
class Shape:
    width: int
    heads: int = 8
    depth: int = heads * 2
    sites: tuple[str, ...] = field(default=("k", "mlp"))
    transport: Transport = Transport.WAVE
    kind: Kind = Kind.LINEAR
    extras: dict = field(default_factory=dict)
    limits: list = field(default_factory=lambda: [1, 2])
    unit: ClassVar[str] = "tokens"

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(self.width)

    @property
    def half(self):
        return self.width // 2

@dataclass(frozen=True)
class Wide(Shape):
    heads: int = 48
    dtype: object = jnp.bfloat16

class Row(NamedTuple):
    width: int
    racks: int = 1

BASE = Shape(width=768)
BIG = dataclasses.replace(BASE, width=2 * BASE.width, heads=12)
HERO = Wide(width=6144)
ROWS = {"d768": Row(768), "d6144": Row(width=6144, racks=11)}

@dataclass
class Part(Shape):
    rate: float = 0.5
    tail: int = field(default=9, kw_only=True)

PART = Part(64, 4, rate=0.25)
FULL = Part(64, 4, 2, (), Transport.RAGGED, Kind.LINEAR, {}, [], 0.75)
"""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("Shape.heads", 8),
        ("Shape.depth", 16),
        ("Shape.sites", ("k", "mlp")),
        ("Shape.extras", {}),
        ("Shape.limits", [1, 2]),
        ("Shape.unit", "tokens"),
        ("Wide.heads", 48),
        ("Wide.depth", 16),
        ("BASE.width", 768),
        ("BASE.transport", "WAVE"),
        ("BASE.transport.value", 1),
        ("BASE.kind", "linear"),
        ("BIG.width", 1536),
        ("BIG.heads", 12),
        ("BIG.depth", 16),
        ("HERO.width // HERO.heads", 128),
        ('ROWS["d6144"].racks * 64', 704),
        ("(PART.width, PART.heads, PART.depth, PART.rate, PART.tail)", (64, 4, 16, 0.25, 9)),
        ("(FULL.depth, FULL.transport, FULL.rate)", (2, "RAGGED", 0.75)),
        ("ROWS", {"d768": {"width": 768, "racks": 1}, "d6144": {"width": 6144, "racks": 11}}),
    ],
)
def test_dataclasses_enumerations_and_named_tuples_are_read(expression: str, expected: object) -> None:
    assert value(CLASSES, expression) == expected


def test_a_field_has_the_place_where_it_was_given_or_defaulted() -> None:
    pinned = one(CLASSES)
    lines = CLASSES.splitlines()
    assert lines[pinned.value(HERE, "BIG.heads").line - 1].startswith("BIG = ")
    assert lines[pinned.value(HERE, "BIG.sites").line - 1].startswith("    sites")


def test_one_unreadable_field_does_not_hide_the_others() -> None:
    assert value(CLASSES, "HERO.sites") == ("k", "mlp")
    assert f"{HERE}:38: `jnp`" in refusal(CLASSES, "HERO.dtype")
    assert "jnp" in refusal(CLASSES, "HERO")
    assert "computed by code" in refusal(CLASSES, "BASE.half")


def test_values_are_imported_from_siblings_and_keep_their_own_place() -> None:
    pinned = read(
        {
            HERE: b"from runs.ladder.shapes import WIDTH as W\nfrom . import laws\nfrom .laws import RATE\n"
            b"import runs.ladder.laws as l\nX = W * 2\nY = laws.RATE\nZ = l.RATE\nfrom .shapes import Shape\n"
            b"S = Shape(width=W)\nimport lib.core\nV = lib.core.SEED\n",
            "runs/ladder/shapes.py": b"from dataclasses import dataclass\nfrom ..common import SCALE\n"
            b"WIDTH = 384 * SCALE\n@dataclass\nclass Shape:\n    width: int\n    heads: int = WIDTH // 128\n",
            "runs/common/__init__.py": b"SCALE = 2\n",
            "runs/ladder/laws.py": b"RATE = 3e-3\n",
            "src/lib/core.py": b"SEED = 17\n",
        },
        roots=("", "src/"),
    )
    assert pinned.value(HERE, "X").value == 1536
    assert pinned.value(HERE, "W").place == "runs/ladder/shapes.py:3"
    assert [pinned.value(HERE, name).value for name in "YZ"] == [3e-3, 3e-3]
    assert pinned.value(HERE, "RATE").place == "runs/ladder/laws.py:1"
    assert pinned.value(HERE, "S.heads").value == 6
    assert pinned.value(HERE, "V").place == "src/lib/core.py:1"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from far.away import X", "comes from far.away, of which no file is among those read"),
        ("from ...... import X", "comes from outside"),
        ("from .shapes import X", "runs/ladder/shapes.py binds no X"),
        ("from .shapes import *\nX = Y", "import of \\* at line 1"),
        ("X = 1\nfrom .shapes import *", "import of \\* at line 2 may have replaced it"),
        ("from .circle import X", "circle"),
        ("X = Y\nY = X", "through itself"),
        ("X = {'a': X}", "through itself"),
        ("X = 1\nX = 2", "bound 2 times, at lines 1, 2"),
        ("if True:\n    X = 1", "binds it in a branch"),
        ("try:\n    from .shapes import X\nexcept ImportError:\n    X = None", "bound 2 times"),
        ("for X in (1, 2):\n    pass", "binds it in a branch"),
        ("X, *Y = 1, 2", "binds it in a branch, a loop or a pattern"),
        ("X = 1\nX += 1", "bound 2 times"),
        ("X = {}\nX['a'] = 1", "line 2 may change it"),
        ("X = []\nX.append(1)", "line 2 may change it"),
        ("X = {}\nY = X\nY['a'] = 1", "line 3 may change it, as Y"),
        ("X = 1\ndef f():\n    global X\n    X = 2", "function at line 3"),
        ("X = 1\nprint((X := 2))", "line 2 may bind it anew"),
        ("X = {}\ndict.update(X, a=1)", "line 2 may change it"),
        ("X = {}\nobject.__setattr__(X, 'a', 1)", "line 2 may change it"),
        ("X = 1\nglobals()['X'] = 2", "line 2 may bind any name, by globals"),
        ("import sys\nX = 1\nsetattr(sys.modules[__name__], 'X', 2)", "line 3 may bind any name, by sys.modules"),
        ("class C:\n    a = 1\n    b = a\n    a = 2\nX = C.b", "its class binds it twice"),
        ("class B:\n    a = 1\nclass C(B):\n    b = a\nX = C.b", "binds no such name"),
        (
            "import enum\nclass E(enum.Enum):\n    A = 1\n    def __init__(self, n): pass\nX = E.A",
            "__init__ of its own",
        ),
        ("X = make()", "binds no such name"),
        ("def X():\n    return 1", "X is a function"),
        ("def f():\n    return 1\nX = f()", "f is a function"),
        ("X = [i for i in (1, 2)]", "no rule for ListComp"),
        ("X = lambda: 1", "no rule for Lambda"),
        ("X = 'a'.join(['b'])", "attribute of a str"),
        ("X = (1).__class__", "attribute of a int"),
        ("X = ().__class__.__bases__[0].__subclasses__()", "attribute of a tuple"),
        ("X = '%s' % 1", "Mod of str and int"),
        ("X = int", "function or type, no value"),
        ("def round(x):\n    return 0\nX = round(1.5)", "round is a function"),
        ("from other import round\nX = round(1.5)", "comes from other"),
        ("X = max(*(1, 2))", r"with \* or \*\*"),
        ("X = 1 / 0", "division by zero"),
        ("X = 'a' + 1", "Add of str and int"),
        ("X = (-8) ** 0.5", "a complex"),
        ("X = 2j", "a complex"),
        ("X = ...", "a ellipsis"),
        ("X = Y", "did you mean 'YY'"),
        ("X = {}['a']", "no key 'a'"),
        ("X = {(1, (2,)): 1}", "single values only"),
        ("X = 1 is 1", "`is` of anything but"),
        ("X = [1] == [1]", "single values only"),
        ("X = f'{[1]}'", "single values only"),
    ],
)
def test_what_only_running_could_tell_is_refused_with_the_reason(text: str, why: str) -> None:
    message = refusal(
        f"{text}\nYY = 0\n" if "Y\n" not in f"{text}\n" or text == "X = Y" else text,
        runs_ladder_shapes="Y = 1\n",
        runs_ladder_circle="from .launch import X\n",
    )
    assert re.search(why, message), message
    assert message.startswith("runs/ladder/")
    assert "is not statically readable" in message


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("@register\n@dataclass\nclass C:", "comes from elsewhere"),
        ("@dataclass\nclass C(metaclass=Meta):", "metaclass"),
        ("@dataclass\nclass C(Base):", "base Base is not among the files read"),
        ("class C:", "neither a dataclass nor a NamedTuple"),
        ("@dataclass(init=False)\nclass C:", "constructor is not that of a dataclass"),
        ("@dataclass\nclass C:\n    def __init__(self, x): self.x = 2", "__init__ of its own"),
        (
            "@dataclass\nclass C:\n    def __post_init__(self): object.__setattr__(self, 'x', 2)",
            "__post_init__ may change",
        ),
        ("@dataclass\nclass C:\n    def __post_init__(self): self.x = 2", "__post_init__ may change"),
        ("@dataclass\nclass C:\n    def __post_init__(self): check(self)", "__post_init__ may change"),
        ("@dataclass\nclass C:\n    def __post_init__(self): self.mend()", "__post_init__ may change"),
        ("@dataclass\nclass C:\n    y: InitVar[int] = 3", "for the constructor only"),
        ("@dataclass\nclass C:\n    y: int = field(init=False, default=1)", "options of unknown effect"),
        ("@dataclass\nclass C:\n    y: int", "field y is not given"),
        ("@dataclass\nclass C:\n    y: int\n    z: int = D(1, 2, 3).w", "3 arguments without names, for 2 fields"),
        ("@dataclass\nclass C:\n    z: int = D(1, v=3).w", "field v is given twice"),
        ("@dataclass\nclass C:\n    z: int = K(1).w", "1 arguments without names, for 0 fields"),
        ("@dataclass\nclass C:\n    if True:\n        x = 1", "in a branch"),
    ],
)
def test_instances_whose_class_does_something_of_its_own_are_refused(head: str, why: str) -> None:
    text = (
        "from dataclasses import dataclass, field, InitVar\nfrom elsewhere import register, Meta, Base\n"
        "@dataclass\nclass D:\n    v: int\n    w: int = 2\n@dataclass(kw_only=True)\nclass K:\n    w: int = 2\n"
        f"{head}\n    x: int = 1\nX = {'C.z' if 'z: int' in head else 'C(x=1).x'}\n"
    )
    if "in a branch" in why:
        text = text.replace("    x: int = 1\n", "").replace("C(x=1).x", "C.x")
    message = refusal(text)
    assert why in message or "decorator of unknown effect, register" in message


def test_a_field_of_a_registered_class_with_a_foreign_base_still_shows_its_default() -> None:
    text = (
        "from dataclasses import dataclass\nfrom lib import Base\n@Base.register_subclass('mine')\n"
        "@dataclass(frozen=True)\nclass Mine(Base):\n    decay: float = 0.1\nX = Mine(decay=0.2)\n"
    )
    assert value(text, "Mine.decay") == 0.1
    assert "base Base is not among the files read" in refusal(text, "X.decay")


HOSTILE = """
import os, sys, pickle, subprocess
from pathlib import Path
Path("/tmp/{mark}").write_text("ran")
open("{mark}", "w").write("ran")
os.system("touch {mark}")
subprocess.run(["touch", "{mark}"])
__import__("os").system("touch {mark}")
exec("import os; os.mkdir('{mark}')")
eval("__import__('os').mkdir('{mark}')")
pickle.loads(b"cos\\nsystem\\n(S'touch {mark}'\\ntR.")

def loud(thing=Path("{mark}").touch()):
    Path("{mark}").touch()
    return thing

class Meta(type):
    def __new__(cls, *args, **kwargs):
        Path("{mark}").touch()
        return super().__new__(cls, *args, **kwargs)
    def __getattr__(cls, name):
        Path("{mark}").touch()

@loud
class Decorated(metaclass=Meta):
    x: int = Path("{mark}").touch()
    @loud
    def method(self): ...
    def __init_subclass__(cls): Path("{mark}").touch()
    def __class_getitem__(cls, item): Path("{mark}").touch()

class Sub(Decorated[Path("{mark}").touch()]): y: int = loud()

A = os.system("touch {mark}")
B = __import__("os").system("touch {mark}")
C = eval("1")
D = Decorated.x
E = Sub().y
F = f"{{os.system('touch {mark}')}}"
G = {{loud(): 1}}
H = [loud() for _ in (1,)]
I = (lambda: os.system("touch {mark}"))()
J = loud
K = sys.modules["os"].system("touch {mark}")
L = 1 if os.system("touch {mark}") else 2
M = round(loud())
N = pickle.loads(b"cos\\nsystem\\n(S'touch {mark}'\\ntR.")
O = max(1, __builtins__["eval"]("1"))
P = "{{0.__class__}}".format(1)
Q = getattr(os, "system")("touch {mark}")
R = Decorated
SAFE = 41 + 1
"""


def test_nothing_of_a_hostile_file_is_run_or_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = "marin-repro-was-here"
    monkeypatch.chdir(tmp_path)
    text = HOSTILE.replace("{mark}", mark).replace("{{", "{").replace("}}", "}")
    compile(text, "hostile", "exec")  # it would run, if anybody ran it

    def trap(*arguments: object, **options: object) -> None:
        raise AssertionError(f"something of the file was run: {arguments}")

    before = set(sys.modules)
    refused = []
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((os, "system"), (subprocess, "run"), (builtins, "eval"), (builtins, "exec")):
            patch.setattr(place, name, trap)
        patch.setattr(importlib, "import_module", trap)
        pinned = read({HERE: text.encode(), "os.py": b"system = 1\n", "runs/ladder/sys.py": b"raise SystemExit\n"})
        for name in [*"ABCDEFGHIJKLMNOPQR"]:
            with pytest.raises(NotReadable):
                pinned.value(HERE, name)
            refused.append(name)
        with pytest.raises(NotReadable, match="line 9 may bind any name, by exec"):
            pinned.value(HERE, "SAFE")
        calm = [line for line in text.splitlines() if not re.search(r"exec|eval|sys\.modules", line)]
        assert read({HERE: "\n".join(calm).encode()}).value(HERE, "SAFE").value == 42
    assert len(refused) == 18
    assert set(sys.modules) == before
    assert list(tmp_path.iterdir()) == []
    assert not Path("/tmp", mark).exists()


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').getcwd()",
        "().__class__",
        "open('x')",
        "X.__init__",
        "exec('1')",
        "[x for x in X]",
        "X :=",
        "",
        "1;2",
    ],
)
def test_what_is_asked_for_is_not_run_either(expression: str) -> None:
    with pytest.raises(NotReadable):
        one("X = 1\n").value(HERE, expression)


@pytest.mark.parametrize(
    "text",
    [
        "X = 9 ** 9 ** 9 ** 9",
        "X = 9 ** 9 ** 9",
        "X = 2 ** 100000",
        "X = 10 ** 400 ** 2",
        "X = 2.0 ** 1e300",
        "X = 'a' * 10 ** 12",
        "X = [0] * 10 ** 12",
        "X = f'{1:1000000000}'",
        "X = f'{1:{10 ** 9}}'",
        "X = 0x" + "f" * 100_000,
        "X = round(1, -10 ** 9)",
        "X = " + "+".join(["1"] * 500),
        "X = " + "[" * 130 + "]" * 130,
        "X = " + "-" * 100_000 + "1",
        "X = " + "(" * 100_000 + ")" * 100_000,
        "A0 = (1, 1)\n" + "".join(f"A{n} = (A{n - 1}, A{n - 1})\n" for n in range(1, 60)) + "X = A59",
        "A0 = 'ab'\n" + "".join(f"A{n} = A{n - 1} + A{n - 1}\n" for n in range(1, 60)) + "X = A59",
        "A0 = 3\n" + "".join(f"A{n} = A{n - 1} * A{n - 1}\n" for n in range(1, 60)) + "X = A59",
        "A0 = {'a': 1}\n" + "".join(f"A{n} = {{'a': A{n - 1}, 'b': A{n - 1}}}\n" for n in range(1, 60)) + "X = A59",
        "".join(f"A{n} = A{n + 1}\n" for n in range(500)) + "A500 = 1\nX = A0",
        "class A(B): pass\nclass B(A): pass\nX = A.x",
        "X = 1 #" + "x" * 2**20,
        "X = " + "1 if 1 else " * 20_000 + "1",
        "if 1:\n" + "".join(f"{' ' * n}if 1:\n" for n in range(1, 99)) + " " * 99 + "X = 1\n",
        "X = 1\n\0",
        "X = 1\n\udcff",
        "X = = 1",
    ],
    ids=range(27),
)
def test_size_and_depth_are_bounded(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(NotReadable) as caught:
        read({HERE: text.encode(errors="surrogateescape")}).value(HERE, "X")
    assert time.perf_counter() - start < 3
    assert len(str(caught.value)) < 500


def test_a_coding_line_loads_no_codec() -> None:
    data = "# -*- coding: rot13 -*-\nX = 'é'\n".encode()
    assert read({HERE: data}).value(HERE, "X").value == "é"
    assert "encodings.rot_13" not in sys.modules or read({HERE: data}).failed == {}


def test_a_file_that_was_not_read_is_said_to_be() -> None:
    with pytest.raises(
        RecordError, match=r"^lost\.py: `X` is not statically readable: the file is not among those read"
    ):
        read({}).value("lost.py", "X")
    with pytest.raises(NotReadable, match="the file is not Python at line 2"):
        read({HERE: b"X = 1\nY = = 2\n"}).value(HERE, "X")


def test_mistakes_of_other_peoples_backslashes_are_not_ours_to_warn_of() -> None:
    assert value("X = '\\d'\n", "X") == "\\d"


@pytest.fixture(scope="module")
def ours() -> Pinned:
    """Our own files, parsed once: that takes longer than all that is read of them."""
    root = Path(__file__).parents[2]
    return read({path.relative_to(root).as_posix(): path.read_bytes() for path in (root / "repro").rglob("*.py")})


@pytest.mark.parametrize(
    "module",
    [
        "ladder.mixture",
        "ladder.laws",
        "ladder.rungs",
        "record.services.content",
        "record.verify",
        "record.digests",
        "files",
        "record.facts",
    ],
)
def test_what_is_read_of_our_own_files_is_what_running_them_gives(module: str, ours: Pinned) -> None:
    pinned, path = ours, f"repro/{module.replace('.', '/')}.py"
    running = importlib.import_module(f"repro.{module}")
    found = {}
    for name in pinned.names(path):
        with contextlib.suppress(NotReadable):
            found[name] = pinned.value(path, name).value
    assert found
    for name, known in found.items():
        assert known == as_plain(getattr(running, name)), name


def as_plain(value: Any) -> Any:
    """Instances of dataclasses as dicts of their fields."""
    if dataclasses.is_dataclass(value):
        return {one.name: as_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return type(value)(map(as_plain, value)) if isinstance(value, tuple) else value
