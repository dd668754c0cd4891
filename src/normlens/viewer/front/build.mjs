// Two bundles from one source: page.js for the saved file, widget.js for notebooks. `--check` builds aside and fails
// where the committed bundle differs, so that what people run is what the sources say.
import { build } from "esbuild";
import { readFile } from "node:fs/promises";

const check = process.argv.includes("--check");
const shared = {
  bundle: true,
  minify: true,
  target: ["es2022"],
  charset: "ascii",
  legalComments: "none",
  loader: { ".css": "text" },
  write: !check,
};
const targets = [
  { entryPoints: ["src/page.ts"], format: "iife", outfile: "../static/page.js" },
  { entryPoints: ["src/widget.ts"], format: "esm", outfile: "../static/widget.js" },
];
for (const target of targets) {
  const result = await build({ ...shared, ...target });
  if (!check) continue;
  const committed = await readFile(target.outfile, "utf8").catch(() => "");
  if (committed !== result.outputFiles[0].text) {
    console.error(`${target.outfile} differs from what the sources build: run \`npm install && npm run build\` and commit it.`);
    process.exit(1);
  }
}
