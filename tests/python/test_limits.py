"""Files and functions stay readable in one sitting."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 600
FUNCTION_LINES = 60
FOLDERS = ("csrc", "python", "kernels", "tools", "examples")

# Blanked before braces are matched: comments, texts, characters, preprocessor lines.
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\''
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
    re.DOTALL | re.MULTILINE,
)
SCOPE = re.compile(
    r"^\s*(template\s*<.*>\s*)?(inline\s+)?(namespace|extern|enum|union|struct|class)\b", re.DOTALL
)


def sources(*suffixes: str) -> list[Path]:
    return sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in suffixes)


def python_functions(text: str) -> list[tuple[str, int, int]]:
    """Name, line and length of every function, its docstring left out."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                length -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            found.append((node.name, node.lineno, length))
    return found


def cxx_functions(text: str) -> list[tuple[str, int, int]]:
    """Header, line and length of every function that stands in a namespace or a class."""
    text = NOISE.sub(lambda noise: re.sub(r"[^\n]", " ", noise[0]), text)
    found = []
    stack: list[tuple[str, str, int]] = []  # kind, header, line of the header
    start = 0  # of the header that is being read
    for at, char in enumerate(text):
        if char == "{":
            start = max(start, text.rfind("\n\n", start, at))  # a macro without semicolon before it
            header = text[start:at]
            if text[at - 1].isalnum() or text[at - 1] in "_>":
                stack.append(("initialiser", "", 0))
                continue
            outside = all(kind == "scope" for kind, _, _ in stack)
            function = "(" in header and not header.rstrip().endswith("=") and outside
            kind = "scope" if SCOPE.match(header) else "function" if function else "block"
            first = start + len(header) - len(header.lstrip())
            stack.append((kind, header.strip(), text.count("\n", 0, first) + 1))
            start = at + 1
        elif char == "}":
            kind, header, line = stack.pop()
            if kind == "function":
                found.append((header, line, text.count("\n", 0, at) + 2 - line))
            if kind != "initialiser":
                start = at + 1
        elif char == ";":
            start = at + 1
    assert not stack, "unbalanced braces"
    return found


def test_files_are_short() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in sources(".py", ".cpp", ".h", ".mm")
        if (n := len(p.read_text("utf-8").splitlines())) > FILE_LINES
    }
    assert not long, f"over {FILE_LINES} lines: {long}"


def test_python_functions_are_short() -> None:
    long = [
        f"{p.relative_to(ROOT)}:{line} {name}: {length} lines"
        for p in sources(".py")
        for name, line, length in python_functions(p.read_text("utf-8"))
        if length > FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_cxx_functions_are_short() -> None:
    long = [
        f"{p.relative_to(ROOT)}:{line} {name.splitlines()[0]}: {length} lines"
        for p in sources(".cpp", ".h", ".mm")
        for name, line, length in cxx_functions(p.read_text("utf-8"))
        if length > FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


CXX_SAMPLE = """
#define MACRO(x) \\
  { x
namespace nbx {
constexpr int kTable[] = {1, 2};
template <class T>
struct Box {
  explicit Box(int n) : n_{n}, text_("}") {
    if (n) {
      use(n);
    }
  }
  int n_{0};
};
// a lone brace { in a comment
int long_one(int a,
             int b) {
  auto f = [&] { return a; };
  return f() + b + '{';
}
}  // namespace nbx
"""


@pytest.mark.parametrize(
    ("header", "line", "length"), [("explicit Box", 8, 5), ("int long_one", 16, 5)]
)
def test_the_cxx_check_itself(header: str, line: int, length: int) -> None:
    found = [f for f in cxx_functions(CXX_SAMPLE) if f[0].startswith(header)]
    assert [(f[1], f[2]) for f in found] == [(line, length)]
    assert len(cxx_functions(CXX_SAMPLE)) == 2
