"""A parsed file to a `TaskSpec`, with everything that is wrong with it, in one pass."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from structrl.lang import tree
from structrl.lang.diagnostics import Diagnostic, TaskError, listing
from structrl.lang.lint import lint
from structrl.lang.lower import Frame, Lowering, finish
from structrl.lang.parser import RESERVED, Parsed, keywords, parse
from structrl.lang.scene import find_scene, find_vocabulary, sim_arguments
from structrl.lang.scope import Report, Scope, TooMuchError
from structrl.lang.spec import Program, TaskSpec
from structrl.lang.tree import Call, Define, Document, Node, Word, walk
from structrl.sims.vocabulary import Vocabulary

_Item = TypeVar("_Item", bound=Node)


@dataclass(frozen=True)
class Checked:
    """`task` is None if there is an error among `diagnostics`; these are in source order."""

    task: TaskSpec | None
    diagnostics: list[Diagnostic]
    lowering: Lowering


def check(parsed: Parsed, path: str, vocabulary: Vocabulary | None = None) -> Checked:
    """Check and lower. `vocabulary` replaces the one that the `sim` line names."""
    report = Report()
    scope = Scope(report, vocabulary, None, {}, {})
    lowering = Lowering(scope)
    task = None
    with suppress(TooMuchError):
        for item in parsed.diagnostics:
            report.error(item.code, item.message, item.span, item.help)
        document = parsed.document
        _once(document, report)
        sim = _first(document, tree.Sim)
        if vocabulary is None and sim is not None:
            scope.vocabulary = find_vocabulary(sim, report)
        sim_args = sim_arguments(sim, report)
        scene = find_scene(sim, sim_args, scope.vocabulary, report)
        scope.entities = None if scene is None or scope.vocabulary is None else dict(scope.vocabulary.scenes[scene])
        _lets(document, scope)
        _defines(document, scope)
        task = _task(document, lowering, sim, sim_args, scene, path, parsed.text)
        if not report.failed:
            _unchecked(document, sim, scope)
    found = sorted(report.found.values(), key=lambda item: (item.span, item.code))
    return Checked(None if report.failed else task, found, lowering)


def _task(
    document: Document,
    lowering: Lowering,
    sim: tree.Sim | None,
    sim_args: dict[str, Any],
    scene: str | None,
    path: str,
    text: str,
) -> TaskSpec:
    scope, report = lowering.scope, lowering.report
    plan, horizon = _first(document, tree.PlanItem), _first(document, tree.Horizon)
    if plan is None:
        report.error("T040", "this file has no plan", tree.NOWHERE, "write `plan` and the subtasks, in order")
    else:
        lowering.plan(plan.body, {}, Frame())
    lines = {"success": _first(document, tree.Success), "fail": _first(document, tree.Fail)}
    programs: dict[str, Program | None] = {
        name: None if line is None else lowering.condition(line.condition, {}, where=name)
        for name, line in lines.items()
    }
    if sim is not None and scope.vocabulary is not None and not scope.vocabulary.has_success and not lines["success"]:
        message = f"`success` is missing, and {sim.name.text} has no success check of its own"
        report.error("T042", message, sim.span, "state when the task is done: `success in(apple, box) and ...`")
    length = None if horizon is None else scope.steps(horizon.length, whole=True)
    subtasks = finish(lowering)
    atoms = tuple(scope.atoms)
    _unused_defines(document, lowering)
    if not lines["success"] and sim is not None:
        programs["success"] = _own_success(scope, scene, sim)
    lint(document, lowering, subtasks, programs, length)
    if sim is not None:
        _completeness(lowering, sim, horizon, path)
    name, command = _first(document, tree.TaskName), _first(document, tree.Command)
    return TaskSpec(
        name=name.name.text if name else _stem(path),
        atoms=atoms,
        subtasks=subtasks,
        command=command.text.value if command else None,
        sim=sim.name.text if sim else None,
        sim_args=sim_args,
        horizon=None if length is None else int(length),
        success=programs["success"] if lines["success"] else None,  # or the simulator's own check
        fail=programs["fail"],
        path=path,
        source=text,
    )


def _own_success(scope: Scope, scene: str | None, sim: tree.Sim) -> Program | None:
    """The simulator's own check of a scene, None where that is not known. Its atoms join those of the file."""
    text = scope.vocabulary.success(scene) if scope.vocabulary else ""
    if not text:
        return None
    aside = Scope(Report(), scope.vocabulary, scope.entities, {}, {}, atoms=scope.atoms)
    with suppress(TaskError):
        condition = _first(parse(f"success {text}").document, tree.Success)
        program = Lowering(aside).condition(condition.condition, {}, where="success") if condition else None
        if not aside.report.failed:
            return program
    message = f"the manifest of `{sim.name.text}` gives a success check for this scene that cannot be used"
    scope.report.error("T016", message, sim.span, f"it is `{text}`")
    return None


def _stem(path: str) -> str:
    return "task" if path.startswith("<") or path == "-" else PurePath(path).stem


def _first(document: Document, kind: type[_Item]) -> _Item | None:
    return next((item for item in document.items if isinstance(item, kind)), None)


def _once(document: Document, report: Report) -> None:
    seen: dict[type[Node], Node] = {}
    for item in document.items:
        if isinstance(item, tree.Let | Define):
            continue
        if type(item) in seen:
            word = {tree.TaskName: "task", tree.PlanItem: "plan"}.get(type(item), type(item).__name__.lower())
            message = f"a second `{word}`; the first is on line {seen[type(item)].span.line}"
            help_ = "join them with `then`, or in a group" if word == "plan" else None
            report.error("T041", message, item.span, help_)
        seen.setdefault(type(item), item)


# -- names ------------------------------------------------------------------------------------------------------------
def _lets(document: Document, scope: Scope) -> None:
    for item in document.items:
        if isinstance(item, tree.Let):
            _free(item.name, scope.lets, scope.report)
            scope.entity(item.entity)
            scope.lets.setdefault(item.name.text, item.entity.value)


def _defines(document: Document, scope: Scope) -> None:
    report = scope.report
    for item in document.items:
        if isinstance(item, Define):
            _free(item.name, scope.defines, report)
            if scope.vocabulary and item.name.text in scope.vocabulary.words:
                message = f"`{item.name.text}` is a word of {scope.vocabulary.sim} already"
                report.error("T024", message, item.name.span, "choose another name")
            params: set[str] = set()
            for param in item.params:
                _free(param, params, report)
                params.add(param.text)
            scope.defines.setdefault(item.name.text, item)
    for node in document.nodes:
        match node:
            case tree.Each(variable=word):
                _free(word, (), report)
                scope.variables.add(word.text)
            case tree.Step(label=Word() as word):
                _free(word, (), report)
            case Call(word) if word.text in keywords() - {"in"}:
                report.error("T024", f"`{word.text}` is a word of the language", word.span)
    uses = {
        name: {node.name.text for node in walk(define.body) if isinstance(node, Call)} & scope.defines.keys()
        for name, define in scope.defines.items()
    }
    recursive = [name for name in uses if _reaches_itself(name, uses)]
    for name in recursive:
        span = scope.defines[name].name.span
        help_ = "definitions do not repeat themselves: write the repetition out"
        report.error("T023", f"`{name}` is defined by itself", span, help_)
    scope.broken.update(recursive)
    for name in recursive:
        del scope.defines[name]


def _free(name: Word, taken: Any, report: Report) -> None:
    if name.text in keywords() or name.text in RESERVED:
        report.error("T024", f"`{name.text}` is a word of the language", name.span, "choose another name")
    elif name.text in taken:
        report.error("T024", f"`{name.text}` is defined twice", name.span)


def _reaches_itself(name: str, uses: Mapping[str, set[str]]) -> bool:
    seen: set[str] = set()
    rest = [name]
    while rest:
        fresh = uses[rest.pop()] - seen
        seen |= fresh
        rest += fresh
    return name in seen


def _unused_defines(document: Document, lowering: Lowering) -> None:
    """Definitions that the plan does not use are checked all the same, with unknown arguments."""
    called = {node.name.text for node in document.nodes if isinstance(node, Call)}
    aside = Lowering(lowering.scope)
    for define in lowering.scope.defines.values():
        if define.name.text not in called:
            binding = {param.text: None for param in define.params}
            if lowering.scope.is_plan(define.body):
                aside.plan(define.body, binding, Frame())
            else:
                aside.condition(define.body, binding)


def _unchecked(document: Document, sim: tree.Sim | None, scope: Scope) -> None:
    """Say which names could not be checked, and what that would take."""
    report, vocabulary = scope.report, scope.vocabulary
    if vocabulary is None:
        message = "without a `sim` line verbs, predicates and objects are not checked"
        start = next(item for item in document.items if isinstance(item, tree.PlanItem)).span
        help_ = 'name the simulator: `sim tabletop(scene="lunch")`, and put `plan` before the plan'
        report.note("T017", message, start._replace(end=start.start + 1), help_)
    elif sim is not None and scope.entities is None:
        which = "this scene of " if vocabulary.scenes else ""
        message = f"the objects are not checked: there is no list of them for {which}`{sim.name.text}`"
        report.note("T017", message, sim.span, "a manifest.json beside its vocabulary holds such lists")


def _completeness(lowering: Lowering, sim: tree.Sim, horizon: tree.Horizon | None, path: str) -> None:
    missing = [each for each in lowering.subtasks if each.step is None or each.step.duration is None]
    if missing:
        names = listing((each.label for each in missing), 6)
        message = f"no duration for {len(missing)} of {len(lowering.subtasks)} subtasks: {names}"
        help_ = f"`structrl calibrate {path} --demos DEMOS.h5 --write` measures them; or write `@ STEPS` behind each"
        lowering.report.warning("T043", message, missing[0].source.span, help_)
    if horizon is None:
        lowering.report.warning("T045", "no horizon; training needs one", sim.span, "write `horizon 240 steps`")
