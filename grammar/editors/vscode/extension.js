// Starts `structrl lsp` for .task files; the server does the rest (structrl/lang/server.py).
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function activate(context) {
  const command = vscode.workspace.getConfiguration("structrl").get("command", "structrl");
  client = new LanguageClient(
    "structrl",
    "structrl task files",
    { command, args: ["lsp"] },
    { documentSelector: [{ language: "structrl-task" }] },
  );
  context.subscriptions.push({ dispose: deactivate });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    vscode.window.showErrorMessage(
      `structrl: \`${command} lsp\` does not start (${error.message}). ` +
        'Install it with: pip install "structrl[lsp]", or set structrl.command to its path.',
    );
  }
}

async function deactivate() {
  const running = client;
  client = undefined;
  await running?.stop();
}

module.exports = { activate, deactivate };
