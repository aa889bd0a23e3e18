"""The table of planted bugs, read off the tests themselves: which seam each breaks, which check must notice, what kind
of code it is, and whether an audit of finished runs alone could see it.

``python -m tests.planted_bugs.table`` prints it as Markdown.  Nothing is typed twice: names, seams and checks come from
the syntax trees of ``test_*_bugs.py``.  Two forms of file are known: a test that patches and checks by itself, and a
registry (``BUGS`` or ``FAULTS``) of planting functions with their checks, run by one parametrised test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from verdicts import area_of, audit_verdict, is_training, runs_needed, topic  # noqa: E402

REGISTRIES = ("BUGS", "FAULTS", "ENGINE_BUGS", "RUN_BUGS")
GREEN = ("checks_pass_unpatched", "the_whole_code_passes", "the_same_audits_contradict_nothing_without_a_bug")
"""Ends of the names of tests that run all checks of their file on the whole code."""
AUDITED = (
    ("engine_faults.py", "test_audit_bugs.py", "test_the_audit_alone_finds_a_bug_of_the_engine", "sgd"),
    ("run_faults.py", "test_run_audit_bugs.py", "test_an_audit_of_runs_finds_a_bug_of_the_method", ""),
)
"""Bugs that an auditor alone finds: where they are, the test that shows it, their area ("": that of the seam)."""
WITHOUT_A_PATCH = {
    "noise_reuse_after_resume_is_found": ("PrivateTrainer.noise_source",),
    "sampler_reuse_after_resume_is_found": ("PrivateTrainer.noise_source",),
    "noise_of_add_remove_for_replace_one": ("plan.neighboring_relation",),
    "noise_used_again_after_a_fork": ("streams.process_identity", "SecretNoise._current", "Prefetch._current"),
}
"""Bugs that come in by an argument, or in a child process, instead of a patch in the test's own."""
ARRANGED = ("PIECE_BYTES", "ACTIVATION_BYTES")
"""What tests set to make a small case meet large ones' code: no bugs."""
NO_CHECKS = {
    "",
    "caught",
    "raises",
    "getattr",
    "len",
    "float",
    "int",
    "list",
    "dict",
    "str",
    "set",
    "sorted",
    "partial",
    "range",
    "setattr",
    "plant",
    "clear",
    "clear_caches",
    "append",
    "parametrize",
    "array",
    "next",
    "iter",
    "import_module",
}
IN_ANOTHER_PROCESS = "team_worker (in both processes)"


@dataclass(frozen=True)
class Entry:
    """One planted bug.

    Attributes:
        name: what is wrong, in words.
        file, test: where the test that must fail stands.
        seams: what is replaced, ``module.attribute``.
        checks: the checks that notice.
        area: kind of code, one of :data:`verdicts.AREAS`.
        whole_first: whether the same check is run, and passes, before anything is broken.
        audit: for bugs of training, whether an audit of the runs alone can see it; else empty.
        runs: with how many runs of both worlds together it does; measured where ``audit`` says so.
    """

    name: str
    file: str
    test: str
    seams: tuple[str, ...]
    checks: tuple[str, ...]
    area: str
    whole_first: bool
    audit: str
    runs: str


class BugFile:
    """The entries of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text("utf-8"))
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def registry(self) -> ast.expr | None:
        """The value of ``BUGS`` or ``FAULTS``."""
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            if any(isinstance(target, ast.Name) and target.id in REGISTRIES for target in targets):
                return node.value  # type: ignore[union-attr]
        return None

    # -- seams --------------------------------------------------------------------------------------------------------
    def seams(self, function: ast.FunctionDef, given: dict[str, str] | None = None, depth: int = 0) -> list[str]:
        """What ``function`` replaces, through the file's own helpers too; ``given`` are its arguments' texts."""
        names = {**_bound(function), **{k: [v] for k, v in (given or {}).items()}}
        found: list[str] = []
        for call in _calls(function):
            what = _called(call)
            if what in ("setattr", "setitem") and _is_patch(call):
                found += _seam(call, names)
            elif what in self.functions and what != function.name and depth < 3 and not what.startswith("check"):
                helper = self.functions[what]
                parameters = [a.arg for a in helper.args.args]
                texts = dict(zip(parameters, (_text(a, names) for a in call.args), strict=False))
                texts |= {k.arg: _text(k.value, names) for k in call.keywords if k.arg}
                found += self.seams(helper, texts, depth + 1)
            elif what == "object" and ast.unparse(call.func).endswith("patch.object"):
                found += _seam(call, names)
        if topic(self.path.stem) in ("accountant", "accounting"):  # every module that imported the name
            found = [re.sub(r"^module\.", "dpml.accounting.*.", seam) for seam in found]
        return list(dict.fromkeys(found))

    # -- entries ------------------------------------------------------------------------------------------------------
    def entries(self) -> Iterator[Entry]:
        if self.registry is not None:
            yield from self._registered()
        for name, function in self.functions.items():
            if name.startswith("test_") and not self._is_harness(function):
                yield self._direct(name.removeprefix("test_"), function)

    def _is_harness(self, function: ast.FunctionDef) -> bool:
        """A test of the whole code, or the one that runs the registry."""
        decorators = " ".join(ast.unparse(d) for d in function.decorator_list)
        return function.name.removeprefix("test_") in GREEN or any(name in decorators for name in REGISTRIES)

    def _direct(self, name: str, function: ast.FunctionDef) -> Entry:
        seams = self.seams(function) or list(WITHOUT_A_PATCH.get(name, ()))
        before, after = self._checks(function)
        checks = sorted(set(after) & set(before)) or sorted(set(after) & self._green) or sorted(set(after or before))
        greens = bool(set(checks) & self._green) or self._green_for_all()
        return self._entry(_words(name), function.name, seams, checks, greens)

    def _registered(self) -> Iterator[Entry]:
        assert self.registry is not None
        runners = [f for f in self.functions.values() if self._is_harness(f) and "unpatched" not in f.name]
        if all(isinstance(item, ast.Name) for item in getattr(self.registry, "elts", [None])):
            for runner in runners:  # the faults are put in one place by each of these tests
                _, after = self._checks(runner)
                for item in self.registry.elts:  # type: ignore[attr-defined]
                    words = f"{_words(item.id)}, {_words(runner.name.removeprefix('test_'))}"
                    seams, checks = self.seams(runner), [n for n in dict.fromkeys(after) if n != "fault"]
                    yield self._entry(words, runner.name, seams, checks, self._green_for_all())
            return
        runner = runners[0]
        pairs: list[tuple[str | None, ast.expr]]
        if isinstance(self.registry, ast.Dict):
            pairs = [
                (ast.literal_eval(k), v) for k, v in zip(self.registry.keys, self.registry.values, strict=True) if k
            ]
        else:
            assert isinstance(self.registry, ast.List)
            pairs = [(None, item) for item in self.registry.elts]
        for title, item in pairs:
            assert isinstance(item, ast.Tuple)
            texts = [part.value for part in item.elts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            planters = [self.functions[p.id] for p in item.elts if isinstance(p, ast.Name) and p.id in self.functions]
            planters = [f for f in planters if self.seams(f) and not f.name.startswith("check")]
            named = title or (texts[0] if isinstance(item.elts[0], ast.Constant) or not planters else None)
            words = named or planters[0].name
            seams = [seam for f in planters for seam in self.seams(f)] or [IN_ANOTHER_PROCESS]
            rest = [p for p in item.elts if not (isinstance(p, ast.Name) and p.id in {f.name for f in planters})]
            checks = [ast.unparse(p).removeprefix("checks.") for p in rest if ast.unparse(p).strip("'\"") != words]
            yield self._entry(_words(words), runner.name, seams, checks, self._green_for_all())

    def _green_for_all(self) -> bool:
        """Whether a test, or the registry's runner before it plants, runs every check on the whole code."""
        for name, function in self.functions.items():
            if name.endswith(GREEN):
                return True
            if self._is_harness(function):
                before, after = self._checks(function)
                if set(before) & set(after):
                    return True
        return False

    def _checks(self, function: ast.FunctionDef) -> tuple[list[str], list[str]]:
        """Names called before anything is broken, and names called (or handed to ``caught``) after it."""
        broken = False
        before: list[str] = []
        after: list[str] = []
        for call in sorted(_calls(function, nested=False), key=lambda c: (c.lineno, c.col_offset)):
            what = _called(call)
            first = _last(call.args[0]) if call.args else ""
            patched = first in ("monkeypatch", "patch")
            plants = what in ("setattr", "setitem") and _is_patch(call)
            plants = plants or (what in ("plant", "bug") and patched) or self._plants(what)
            if what == "plant" and not patched:
                before.append(first)  # this helper runs the check, plants, and runs it again
                after.append(first)
                broken = True
            elif plants:
                broken = True
            else:
                names = [what] + ([first] if what in ("caught", "found", "check") else [])
                (after if broken else before).extend(names)
        if not broken:  # the bug comes in by an argument: the same check is called with and without it
            after = [name for name, times in Counter(before).items() if times > 1]
        return [n for n in before if self._is_check(n)], [n for n in after if self._is_check(n)]

    def _plants(self, name: str) -> bool:
        return name in self.functions and not name.startswith("check") and bool(self.seams(self.functions[name]))

    @staticmethod
    def _is_check(name: str) -> bool:
        return name not in NO_CHECKS and not name[:1].isupper()

    @cached_property
    def _green(self) -> set[str]:
        """Checks that some test of the file runs before it breaks anything."""
        return {name for f in self.functions.values() if f.name.startswith("test_") for name in self._checks(f)[0]}

    def _entry(self, name: str, test: str, seams: list[str], checks: list[str], green: bool) -> Entry:
        area = area_of(self.path.stem, seams, name)
        audit = audit_verdict(self.path.stem, name) if is_training(self.path.stem) else ""
        return Entry(
            name, self.path.name, test, tuple(seams), tuple(checks), area, green, audit, runs_needed(audit)
        )  # fmt: skip


# -- syntax -----------------------------------------------------------------------------------------------------------
def _calls(node: ast.AST, *, nested: bool = True) -> list[ast.Call]:
    """The calls in ``node``; without those in functions that are defined in it unless ``nested``."""
    found: list[ast.Call] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda) and not nested:
            continue
        if isinstance(child, ast.Call):
            found.append(child)
        found += _calls(child, nested=nested)
    return found


def _called(call: ast.Call) -> str:
    return _last(call.func)


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_patch(call: ast.Call) -> bool:
    arranged = any(word in ast.unparse(arg) for arg in call.args[:2] for word in ARRANGED)
    return isinstance(call.func, ast.Attribute) and not arranged


def _bound(function: ast.FunctionDef) -> dict[str, list[str]]:
    """Texts that loop variables, assigned names and parametrised arguments of ``function`` stand for."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple | ast.List):
            pairs = [(node.target, item) for item in node.iter.elts]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            pairs = [(node.targets[0], node.value.body), (node.targets[0], node.value.orelse)]
        for target, item in pairs:
            both = isinstance(target, ast.Tuple) and isinstance(item, ast.Tuple)
            for one, text in zip(target.elts, item.elts, strict=False) if both else [(target, item)]:  # type: ignore[attr-defined]
                if isinstance(one, ast.Name):
                    found.setdefault(one.id, []).append(_plain(text))
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and _called(decorator) == "parametrize" and len(decorator.args) > 1:
            names, values = decorator.args[:2]
            if isinstance(names, ast.Constant) and isinstance(values, ast.List):
                found[names.value] = [_plain(item) for item in values.elts]
    return found


def _plain(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return ast.unparse(node)[2:-1]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _text(node: ast.expr, names: dict[str, list[str]]) -> str:
    known = names.get(node.id) if isinstance(node, ast.Name) else None
    return known[0] if known else _plain(node)


def _seam(call: ast.Call, names: dict[str, list[str]]) -> list[str]:
    """``owner.attribute`` of one ``setattr``; several where the owner or attribute runs through a list."""
    owner = call.args[0]
    owners = names.get(owner.id, [owner.id]) if isinstance(owner, ast.Name) else [_plain(owner)]
    if len(call.args) == 2:  # setattr("dotted.path", value)
        return owners
    attribute = call.args[1]
    attributes = names.get(attribute.id, [attribute.id]) if isinstance(attribute, ast.Name) else [_plain(attribute)]
    if len(owners) == len(attributes) and len(owners) > 1:
        return [f"{o}.{a}" for o, a in zip(owners, attributes, strict=True)]
    return [f"{o}.{a}" for o in owners for a in attributes]


def _words(name: str) -> str:
    return name.strip("_").replace("_s ", "'s ").replace("_", " ")


def _audited() -> Iterator[Entry]:
    """The registries of bugs that are handed to an audit; each is seen by it, which its test measures."""
    for source, file, test, area in AUDITED:
        made = BugFile(HERE.parent / source)
        assert isinstance(made.registry, ast.List)
        same = re.search(r"Settings\(runs=([\d_]+)", (HERE / file).read_text("utf-8"))
        for item in made.registry.elts:
            assert isinstance(item, ast.Tuple)
            assert isinstance(item.elts[0], ast.Name)
            name = item.elts[0].id
            seams = tuple(made.seams(made.functions[name]))
            own = [e.value for e in item.elts if isinstance(e, ast.Constant) and isinstance(e.value, int)]
            count = own[0] if own else int(same[1]) if same else 0
            kind = area or ("mechanisms" if "Mechanism" in seams[0] else "erm")
            words = f"{_words(name)} (by an audit)"
            yield Entry(words, file, test, seams, ("audit",), kind, True, "yes: measured", f"{count:,}")


# -- the table --------------------------------------------------------------------------------------------------------
def entries() -> list[Entry]:
    """All planted bugs of the suite; names that two files share get the file's topic."""
    found = [entry for path in sorted(HERE.glob("test_*_bugs.py")) for entry in BugFile(path).entries()]
    found += _audited()
    shared = Counter(entry.name for entry in found)
    out, seen = [], Counter[str]()
    for entry in found:
        name = entry.name
        if shared[name] > 1:
            name = f"{name} ({topic(entry.file).replace('_', ' ')})"
        seen[name] += 1
        if seen[name] > 1:  # one bug, several checks
            name = f"{name}, {seen[name]}"
        out.append(Entry(name, *(getattr(entry, key) for key in list(Entry.__annotations__)[1:])))
    return out


def markdown(found: list[Entry]) -> str:
    """The table, one row an entry, and counts below."""
    rows = ["| bug | seam | test that fails | checks | area | audit alone | runs |", "|---|---|---|---|---|---|---|"]
    for entry in sorted(found, key=lambda e: (e.area, e.file)):
        cells = [
            entry.name,
            ", ".join(f"`{seam}`" for seam in entry.seams),
            f"{entry.file}::{entry.test}",
            ", ".join(f"`{check}`" for check in entry.checks),
            entry.area,
            entry.audit or "not a bug of training",
            entry.runs,
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    areas = Counter(entry.area for entry in found)
    seen = Counter(entry.audit.partition(":")[0] for entry in found if entry.audit)
    rows += ["", f"{len(found)} planted bugs: " + ", ".join(f"{area} {n}" for area, n in sorted(areas.items())) + "."]
    measured = sum(entry.audit == "yes: measured" for entry in found)
    rows += [
        f"Of {sum(seen.values())} bugs of training an audit alone can see {seen['yes']}, and not {seen['no']}. "
        f"For {measured} the runs are those of the test that shows it (99.9 % confidence); for the others they are "
        "argued from these."
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(markdown(entries()))
