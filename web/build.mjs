// Bundles the dashboard: node build.mjs OUTDIR, or node build.mjs --tests for the unit tests.
// Names carry a hash of their content, so that browsers may keep every file but index.html for ever.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { constants, gzipSync } from "node:zlib";

const here = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const shared = {
  bundle: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  target: ["es2022"],
  legalComments: "none",
  logLevel: "warning",
  absWorkingDir: here,
};

async function buildTests() {
  const names = (await readdir(path.join(here, "tests"))).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...shared,
    entryPoints: names.map((name) => `tests/${name}`),
    outdir: "build/tests",
    outExtension: { ".js": ".mjs" },
    platform: "node",
    format: "esm",
  });
}

async function buildPage(outdir) {
  const result = await build({
    ...shared,
    entryPoints: { main: "src/main.tsx", boot: "src/boot.ts", style: "src/style.css" },
    outdir: path.join(outdir, "assets"),
    entryNames: "[name]-[hash]",
    format: "esm",
    minify: true,
    metafile: true,
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const names = {};
  for (const [file, made] of Object.entries(result.metafile.outputs)) {
    if (made.entryPoint) names[path.basename(made.entryPoint).split(".")[0]] = path.basename(file);
  }
  const icon = await readFile(path.join(here, "src/icon.svg"));
  names.icon = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
  await writeFile(path.join(outdir, "assets", names.icon), icon);
  const page = await readFile(path.join(here, "src/index.html"), "utf8");
  const filled = page.replace(/\{\{(\w+)\}\}/g, (_, name) => (name === "build" ? names.main.slice(5, 13) : names[name]));
  await writeFile(path.join(outdir, "index.html"), filled);
  await compress(outdir);
}

async function compress(folder) {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) await compress(file);
    else if (!file.endsWith(".gz")) {
      const packed = gzipSync(await readFile(file), { level: constants.Z_BEST_COMPRESSION });
      packed[9] = 255; // the operating system's number: equal sources make equal files everywhere
      await writeFile(`${file}.gz`, packed);
    }
  }
}

const [wanted] = process.argv.slice(2);
if (wanted === "--tests") await buildTests();
else if (wanted) {
  await mkdir(path.join(wanted, "assets"), { recursive: true });
  await buildPage(path.resolve(wanted));
} else {
  console.error("usage: node build.mjs OUTDIR | --tests");
  process.exit(2);
}
