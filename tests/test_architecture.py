"""The rooms of the package and the direction of their imports: never upward, never in a circle.

Imports are read from the source text, so those inside functions count as well.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tfdpbc"
ROOMS = {
    0: ("_validate", "errors", "random", "native"),
    1: ("accounting", "sampling", "clipping", "aggregation", "noise", "robust", "data", "models"),
    2: ("gradients", "algorithms"),
    3: ("plan", "analyses", "guarantee", "ledger", "compatibility", "statistics", "normalization"),
    4: ("training",),
    5: ("keras_model", "attacked_model", "export", "callbacks", "reporting"),
    6: ("experiments", "audit", "federated"),
    7: ("cli", "__main__"),
}
ROOM_OF = {name: number for number, names in ROOMS.items() for name in names}
# Beyond the room numbers: (who, whom it must not import, why).
FORBIDDEN = [
    ("reporting", ("training", "keras_model", "export", "callbacks", "plan"), "it reads files, never live objects"),
    ("accounting", ("sampling", "clipping", "aggregation", "noise", "data", "models"), "it knows numbers only"),
    ("noise", ("accounting", "sampling", "clipping", "aggregation", "data", "models"), "it draws noise, nothing else"),
]


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, name: str, is_package: bool, modules: set[str]) -> set[str]:
    """What the module `name` imports of its own package; `from package import x` counts as x where x is a module."""
    root = name.split(".")[0]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == root)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = name.split(".") if is_package else name.split(".")[:-1]
                base = ".".join([*here[: len(here) - node.level + 1], *filter(None, [node.module])])
            if base.split(".")[0] == root:
                full = [f"{base}.{alias.name}" for alias in node.names]
                found.update(module if module in modules else base for module in full)
    return found - {name}


def graph_of(package: Path) -> dict[str, set[str]]:
    paths = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return {
        name: imports_of(path.read_text(), name, path.name == "__init__.py", set(paths)) for name, path in paths.items()
    }


def room(module: str) -> int:
    return ROOM_OF[module.split(".")[1]]


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports that go up, and those that reach a name through the package's root (whose rooms nobody can see)."""
    wrong = []
    for module, targets in graph.items():
        for target in targets if module != "tfdpbc" else ():
            if target == "tfdpbc":
                if room(module) < 7:
                    wrong.append(f"{module} imports through the root of the package: name the module instead")
            elif room(target) > room(module):
                wrong.append(f"{module} (room {room(module)}) imports {target} (room {room(target)})")
    return wrong


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The circles of the import graph, each from where a depth-first walk met it."""
    found, done = [], set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


GRAPH = graph_of(PACKAGE)


def test_every_module_has_a_room():
    homeless = {module.split(".")[1] for module in GRAPH if "." in module} - set(ROOM_OF)
    assert not homeless, f"say in ROOMS where these belong: {sorted(homeless)}"


def test_no_upward_import():
    assert upward(GRAPH) == []


def test_no_circular_import():
    assert circles(GRAPH) == []


@pytest.mark.parametrize("who, whom, why", FORBIDDEN, ids=[who for who, _, _ in FORBIDDEN])
def test_rooms_that_know_less(who, whom, why):
    wrong = [
        f"{module} imports {target}: {why}"
        for module, targets in GRAPH.items()
        if module.split(".")[1:2] == [who]
        for target in targets
        if target.split(".")[1:2] and target.split(".")[1] in whom
    ]
    assert wrong == []


def test_the_check_sees_lazy_relative_and_circular_imports(tmp_path):
    """The tests above would pass on an empty graph; this one shows that the reader finds what it must find."""
    package = tmp_path / "tfdpbc"
    (package / "accounting").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "errors.py").write_text("")
    (package / "plan.py").write_text("from tfdpbc.accounting import tradeoff\nfrom tfdpbc import errors, Gaussian\n")
    (package / "sampling.py").write_text("def f():\n    from tfdpbc.plan import PrivacyPlan\n")
    (package / "accounting" / "__init__.py").write_text("from .tradeoff import TradeOff\n")
    (package / "accounting" / "tradeoff.py").write_text("def f():\n    from . import mixture\n")
    (package / "accounting" / "mixture.py").write_text("from .tradeoff import TradeOff\n")
    graph = graph_of(package)
    assert graph["tfdpbc.plan"] == {"tfdpbc.accounting.tradeoff", "tfdpbc.errors", "tfdpbc"}
    assert graph["tfdpbc.accounting"] == {"tfdpbc.accounting.tradeoff"}
    assert sorted(upward(graph)) == [
        "tfdpbc.plan imports through the root of the package: name the module instead",
        "tfdpbc.sampling (room 1) imports tfdpbc.plan (room 3)",
    ]
    assert [set(circle) for circle in circles(graph)] == [{"tfdpbc.accounting.mixture", "tfdpbc.accounting.tradeoff"}]


def test_every_folder_with_modules_is_a_package():
    """A folder without __init__.py works from a checkout and is missing from the wheel."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
