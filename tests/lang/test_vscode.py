"""The VS Code extension, in Node, with stand-ins for VS Code and for its client library."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "grammar" / "editors" / "vscode"
NODE = shutil.which("node")
PACKAGE = json.loads((FOLDER / "package.json").read_text())
SCRIPT = """
const Module = require("module");
const said = [];
class LanguageClient {
  constructor(...given) { said.push(given); }
  async start() { if (FAILS) throw new Error("spawn ENOENT"); said.push("started"); }
  async stop() { said.push("stopped"); }
}
const vscode = {
  workspace: { getConfiguration: (section) => ({ get: (key) => `${section}.${key}` }) },
  window: { showErrorMessage: (text) => said.push(text) },
};
const load = Module._load;
Module._load = (name, ...rest) =>
  ({ vscode, "vscode-languageclient/node": { LanguageClient } })[name] ?? load(name, ...rest);
const extension = require(process.argv[1]);
const context = { subscriptions: [] };
extension.activate(context)
  .then(() => Promise.all(context.subscriptions.map((each) => each.dispose())))
  .then(() => extension.deactivate())
  .then(() => console.log(JSON.stringify(said)));
"""


def run(fails: bool) -> list:
    assert NODE is not None
    script = SCRIPT.replace("FAILS", json.dumps(fails))
    argv = [NODE, "-e", script, str(FOLDER / PACKAGE["main"])]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_it_starts_and_stops_the_server():
    given, *events = run(fails=False)
    _, _, server, client = given
    assert server == {"command": "structrl.command", "args": ["lsp"]}, "the setting, not a fixed name"
    (language,) = PACKAGE["contributes"]["languages"]
    assert client["documentSelector"] == [{"language": language["id"]}] and language["extensions"] == [".task"]
    assert events == ["started", "stopped"]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_a_server_that_does_not_start_is_said():
    _, message = run(fails=True)
    assert "`structrl.command lsp` does not start (spawn ENOENT)" in message and "pip install" in message


def test_what_the_manifest_names_exists():
    contributed = PACKAGE["contributes"]
    files = [each["configuration"] for each in contributed["languages"]] + [
        each["path"] for each in contributed["grammars"]
    ]
    assert all((FOLDER / file).is_file() for file in [PACKAGE["main"], *files])
    assert set(contributed["configuration"]["properties"]) == {"structrl.command"}
    assert PACKAGE["activationEvents"] == [f"onLanguage:{contributed['languages'][0]['id']}"]
