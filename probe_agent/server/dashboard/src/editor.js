// The SQL editor. It lives in a shadow root: there its style sheets are objects, which the page's policy allows.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { PostgreSQL, sql } from '@codemirror/lang-sql';
import { bracketMatching, defaultHighlightStyle, syntaxHighlighting } from '@codemirror/language';
import { EditorState, Prec } from '@codemirror/state';
import { EditorView, keymap, lineNumbers, placeholder } from '@codemirror/view';

export function makeEditor(box, text, schema, run) {
  const root = box.shadowRoot ?? box.attachShadow({ mode: 'open' });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        Prec.highest(keymap.of([{ key: 'Mod-Enter', run: () => { run(); return true; } }])),
        lineNumbers(), history(), bracketMatching(), closeBrackets(), autocompletion({ icons: false }),
        keymap.of([...closeBracketsKeymap, ...completionKeymap, ...historyKeymap, ...defaultKeymap]),
        sql({ dialect: PostgreSQL, schema, upperCaseKeywords: true }),
        syntaxHighlighting(defaultHighlightStyle, { fallback: true }),
        placeholder('SELECT …'), EditorView.lineWrapping,
        EditorView.contentAttributes.of({ 'aria-label': 'SQL statement' }),
        EditorView.theme({
          '&': { fontSize: '14px', color: 'var(--text)', backgroundColor: 'var(--surface)' },
          '&.cm-focused': { outline: '2px solid var(--accent)' },
          '.cm-content': { minHeight: '88px', fontFamily: 'ui-monospace, monospace', caretColor: 'var(--text)' },
          '.cm-gutters': { backgroundColor: 'var(--raised)', color: 'var(--muted)', border: 'none' },
          '.cm-cursor': { borderLeftColor: 'var(--text)' },
          '.cm-tooltip': { backgroundColor: 'var(--raised)', color: 'var(--text)', border: '1px solid var(--line)' },
          '.cm-tooltip-autocomplete ul li[aria-selected]': { backgroundColor: 'var(--accent)', color: '#fff' },
          '.tok-keyword, .ͼb': { color: 'var(--accent)' },
        }),
      ],
    }),
  });
  return { text: () => view.state.doc.toString(), destroy: () => view.destroy() };
}
