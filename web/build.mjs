// Writes ../src/headrace/service/page/vendor from the locked packages; the bytes are the same on any machine.
// With --check it writes nothing, and fails if the existing files differ from the build.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const vendor = join(here, "../src/headrace/service/page/vendor");

/** Bundles an entry; returns the files, and the packages whose code they contain. */
async function bundle(entry, name) {
  const result = await build({
    absWorkingDir: here,
    entryPoints: [entry],
    outfile: name,
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    format: "esm",
    target: "es2022",
    charset: "utf8",
    legalComments: "none", // the licenses are in LICENSES.txt
  });
  const used = Object.values(result.metafile.outputs).flatMap((output) =>
    Object.entries(output.inputs)
      .filter(([, { bytesInOutput }]) => bytesInOutput > 0)
      .map(([path]) => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1]),
  );
  return { files: [[name, result.outputFiles[0].contents]], used: used.filter(Boolean) };
}

/** Returns name, version and license of a package, as text. */
async function describeLicense(name) {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = await readFile(join(folder, "LICENSE"), "utf8");
  return `${name} ${version} (${license})\n\n${text.trim()}\n`;
}

const parts = [
  await bundle("codemirror.js", "codemirror.js"),
  await bundle("uplot.js", "uplot.js"),
  await bundle("node_modules/uplot/dist/uPlot.min.css", "uplot.css"),
];
const packages = [...new Set(parts.flatMap((part) => part.used))].sort();
const licenses = (await Promise.all(packages.map(describeLicense))).join(`\n${"-".repeat(80)}\n\n`);
const files = [...parts.flatMap((part) => part.files), ["LICENSES.txt", Buffer.from(licenses)]];

await mkdir(vendor, { recursive: true });
const different = [];
for (const [name, contents] of files) {
  const path = join(vendor, name);
  const present = await readFile(path).catch(() => null);
  if (present === null || !present.equals(Buffer.from(contents))) different.push(name);
  if (!process.argv.includes("--check")) await writeFile(path, contents);
  console.log(`${name}  ${contents.length.toLocaleString("en")} bytes`);
}
if (process.argv.includes("--check") && different.length) {
  console.error(`files differ from the build: ${different.join(", ")}; run 'npm ci && npm run build'`);
  process.exit(1);
}
