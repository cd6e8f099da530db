// What every view is made of: a verdict above, evidence below, and the SQL behind it one click away.
import { useContext, useState } from 'preact/hooks';
import { age, cell, num } from './format.js';
import { Page } from './live.js';
import { change, link } from './state.js';

export function Verdict({ tone = 'plain', children, more }) {
  return (
    <header class={`verdict ${tone}`} aria-live="polite">
      <p>{children}</p>
      {more && <small>{more}</small>}
    </header>
  );
}

// Ranks may have a note each.
const MOST_NOTES = 3;

// The state of one question: its answer, or why there is none and what to do.
export function Answer({ of, empty, children }) {
  if (of.error && !of.data) return <Failure error={of.error} />;
  if (of.loading || (!of.data && !of.error)) return <p class="state" role="status">Asking the ranks …</p>;
  const rows = of.data.rows ?? of.data.answer?.rows;
  const gone = of.error && <Failure error={of.error} stale />;
  if (rows && rows.length === 0 && empty) {
    const why = of.data.notes?.filter(Boolean) ?? [];
    const more = why.length - MOST_NOTES;
    return <>{gone}<div class="state" role="status"><p>{empty}</p>{why.slice(0, MOST_NOTES).map((note) => <p key={note} class="muted">{note}</p>)}{more > 0 && <p class="muted">and {num(more, 'more note')}</p>}</div></>;
  }
  return <>{gone}{children}</>;
}

export function Failure({ error, stale }) {
  return (
    <div class="state failure" role="alert">
      <p>{stale ? 'This is an older answer: ' : ''}{error.message}</p>
      {error.hint && <p class="muted">Try: {error.hint}</p>}
    </div>
  );
}

// Who is missing in an answer; nothing where all have answered.
export function Unanswered({ answer }) {
  const missing = answer?.unanswered ?? [];
  if (!missing.length) return null;
  const all = missing.length + answer.answered.length;
  return (
    <details class="partial">
      <summary>{all - missing.length} of {num(all, 'rank')} answered</summary>
      <ul>{missing.slice(0, 50).map((one) => <li key={one.endpoint}><b>{one.endpoint}</b>: {one.message} {one.hint && <span class="muted">({one.hint})</span>}</li>)}</ul>
    </details>
  );
}

export function Panel({ title, note, sql, children, wide }) {
  return (
    <section class={wide ? 'panel wide' : 'panel'} aria-label={title}>
      <h2>{title}{note && <small> {note}</small>}</h2>
      {children}
      {sql && <Sql sql={sql} />}
    </section>
  );
}

export function Sql({ sql }) {
  const text = sql.trim();
  return (
    <details class="sql">
      <summary>SQL</summary>
      <pre tabIndex={0}><code>{text}</code></pre>
      <a href={link('sql', { q: text })}>Open in the editor</a>
    </details>
  );
}

// Which command an answer is from, and how old it is.
export function Command({ of }) {
  if (!of) return null;
  const old = Math.max(0, Date.now() / 1000 - of.at);
  return <details class="sql"><summary>Command, {old < 2 ? 'just now' : `${age(old)} ago`}</summary><pre tabIndex={0}><code>{of.command}</code></pre></details>;
}

// Columns: [name, heading, show, is a number]. Texts are text nodes: nothing of a job is ever HTML.
export function Table({ columns, rows, label, onRow, most = 200 }) {
  const [all, setAll] = useState(false);
  const shown = all ? rows : rows.slice(0, most);
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={label}>
      <table>
        <thead><tr>{columns.map(([name, heading, , right]) => <th key={name} scope="col" class={right ? 'right' : ''}>{heading ?? name}</th>)}</tr></thead>
        <tbody>
          {shown.map((row, at) => (
            <tr key={at}>
              {columns.map(([name, , show, right], nth) => {
                const text = show ? show(row[name], row) : cell(row[name]);
                return <td key={name} class={right ? 'right' : ''}>{onRow && nth === 0 ? <button type="button" class="as-link" onClick={() => onRow(row)}>{text}</button> : text}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown.length && <button type="button" onClick={() => setAll(true)}>Show all {num(rows.length, 'row')}</button>}
    </div>
  );
}

export function Choice({ name, label, options, fallback, params }) {
  const value = params[name] ?? fallback;
  return (
    <label class="choice">{label}
      <select value={value} onChange={(event) => change({ [name]: event.target.value })}>
        {options.map(([key, text]) => <option key={key} value={key}>{text}</option>)}
      </select>
    </label>
  );
}

export function RankChoice({ params, name = 'rank', label = 'Rank', any, fallback }) {
  const { ranks } = useContext(Page);
  const options = ranks.map((one) => [String(one.rank), `${one.rank} on ${one.host}`]);
  return <Choice name={name} label={label} params={params} fallback={any ? '' : fallback ?? options[0]?.[0]} options={any ? [['', any], ...options] : options} />;
}
