// The pages are built into the Python package, so that users need no Node.js. `sources.txt` there says
// of which sources they were built: tests/console/test_bundle.py compares.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

const out = "../src/aliquot/console/static";

function files(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((one) =>
    one.isDirectory() ? files(join(folder, one.name)) : [join(folder, one.name)],
  );
}

function sourcesHash(): string {
  const hash = createHash("sha256");
  const names = ["index.html", "package-lock.json", "tsconfig.json", "vite.config.ts"];
  for (const name of [...names, ...files("public"), ...files("src")].map((one) => relative(".", one)).sort()) {
    hash.update(`${name}\n`).update(readFileSync(name));
  }
  return hash.digest("hex");
}

export default defineConfig({
  base: "./",
  plugins: [
    preact(),
    { name: "sources", closeBundle: () => writeFileSync(join(out, "sources.txt"), `${sourcesHash()}\n`) },
  ],
  build: { outDir: out, emptyOutDir: true, target: "es2022", assetsInlineLimit: 0, modulePreload: { polyfill: false } },
});
