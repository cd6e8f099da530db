// Bundles src/ into dist/: one script, one style sheet, one page. Run by hatch_build.py.
import { build } from 'esbuild';
import { copyFileSync } from 'node:fs';

await build({
  entryPoints: { app: 'src/main.jsx' },
  bundle: true,
  minify: true,
  target: 'es2022',
  format: 'esm',
  splitting: true,
  chunkNames: '[name]-[hash]',
  outdir: 'dist',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'eof',
  logLevel: 'warning',
});
copyFileSync('src/index.html', 'dist/index.html');
copyFileSync('src/icon.svg', 'dist/icon.svg');
