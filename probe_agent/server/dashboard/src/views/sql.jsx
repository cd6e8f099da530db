// SQL: an editor that completes tables and columns, the rows, and a quick chart. The statement is in the address.
import { useContext, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { cell, num, number, seconds } from '../format.js';
import { asJob, Page, query, useAsked } from '../live.js';
import { Choice, Failure, Panel, Table, Unanswered, Verdict } from '../parts.jsx';
import { change } from '../state.js';

const FIRST = 'SELECT rank, count(*) AS steps, median(duration) AS step_time\nFROM python.steps GROUP BY rank ORDER BY rank';

export default function SqlView({ params }) {
  const { job, scope } = useContext(Page);
  const tables = useAsked(`/v1/tables?${asJob(job)}`, 0);
  const [state, set] = useState({});
  const [copied, setCopied] = useState(false);
  const [ready, setReady] = useState(false);
  const box = useRef(null);
  const editor = useRef(null);
  const asked = useRef(null);

  const run = async () => {
    const sql = editor.current.text().trim();
    change({ q: sql });
    asked.current?.abort();
    asked.current = new AbortController();
    set((before) => ({ ...before, busy: true }));
    const began = performance.now();
    try {
      const data = await query(sql, { job, scope, signal: asked.current.signal, maxRows: 10000 });
      set({ data, took: (performance.now() - began) / 1000 });
    } catch (error) {
      if (error.name !== 'AbortError') set({ error });
    }
  };
  const newest = useRef(run);
  newest.current = run;

  useEffect(() => {
    let ended = false;
    const schema = {};
    for (const table of tables.data?.tables ?? []) schema[table.name] = table.columns.map((column) => ({ label: column.name, detail: column.unit || column.type, info: column.meaning, type: 'property' }));
    import('../editor.js').then(({ makeEditor }) => {
      if (ended || !box.current) return;
      const text = editor.current?.text() ?? params.q ?? FIRST;
      editor.current?.destroy();
      editor.current = makeEditor(box.current, text, schema, () => newest.current());
      setReady(true);
    });
    return () => { ended = true; };
  }, [tables.data]);
  useEffect(() => () => editor.current?.destroy(), []);

  const rows = state.data?.rows ?? [];
  const columns = state.data?.columns ?? [];
  const numeric = columns.filter((column) => /INT|DOUBLE|FLOAT|DECIMAL/.test(column.type)).map((column) => column.name);
  const x = columns.some((column) => column.name === params.x) ? params.x : columns[0]?.name;
  const y = numeric.includes(params.y) ? params.y : numeric.find((name) => name !== x) ?? numeric[0];
  const kind = params.chart ?? 'line';
  const option = useMemo(() => () => {
    const times = columns.find((column) => column.name === x)?.type.startsWith('TIMESTAMP');
    const value = numeric.includes(x);
    return {
      grid: { left: 72, right: 16, top: 12, bottom: 48 },
      xAxis: { type: times ? 'time' : value && kind !== 'bar' ? 'value' : 'category', name: x, scale: true },
      yAxis: { type: 'value', name: y, nameGap: 52, scale: kind !== 'bar', axisLabel: { formatter: number } },
      tooltip: { trigger: kind === 'scatter' ? 'item' : 'axis', valueFormatter: number },
      series: [{ type: kind, name: y, showSymbol: rows.length < 100, symbolSize: 6, data: rows.slice(0, 5000).map((row) => [times ? Date.parse(`${row[x]}Z`) : value && kind !== 'bar' ? row[x] : cell(row[x]), row[y]]) }],
    };
  }, [state.data, x, y, kind]);

  return (
    <>
      <Verdict tone={state.error ? 'bad' : 'plain'}>
        {state.error ? 'the statement failed' : state.data ? `${num(rows.length, 'row')} in ${seconds(state.took)}${state.data.truncated ? ', and there are more' : ''}` : 'one read-only SELECT over all ranks of the job'}
      </Verdict>
      <div class="panels">
        <Panel title="Statement" note="Ctrl-Enter runs it; names complete as you type" wide>
          <div class="editor" ref={box} />
          <div class="row">
            <button type="button" class="main" disabled={state.busy || !scope || !ready} onClick={run}>{state.busy ? 'Running …' : 'Run'}</button>
            {state.busy && <button type="button" onClick={() => { asked.current.abort(); set({}); }}>Cancel</button>}
            <button type="button" disabled={!ready} onClick={() => { change({ q: editor.current.text() }); navigator.clipboard?.writeText(location.href).then(() => setCopied(true), () => setCopied(false)); }}>{copied ? 'Copied' : 'Copy the address'}</button>
          </div>
          {state.error && <Failure error={state.error} />}
        </Panel>
        {state.data && (
          <Panel title="Rows" wide>
            <Unanswered answer={state.data} />
            {state.data.notes.filter(Boolean).map((note) => <p class="muted" key={note}>{note}</p>)}
            {rows.length ? <Table label="Rows of the answer" rows={rows} columns={columns.map((column) => [column.name, column.name, null, numeric.includes(column.name)])} /> : <p class="state">No row matches.</p>}
          </Panel>
        )}
        {rows.length > 1 && y && (
          <Panel title="Chart" wide>
            <div class="row">
              <Choice name="chart" label="Kind" params={params} fallback="line" options={[['line', 'line'], ['bar', 'bar'], ['scatter', 'points']]} />
              <Choice name="x" label="Across" params={params} fallback={x} options={columns.map((column) => [column.name, column.name])} />
              <Choice name="y" label="Up" params={params} fallback={y} options={numeric.map((name) => [name, name])} />
            </div>
            <Chart option={option} label={`${y} by ${x}`} />
          </Panel>
        )}
        <Panel title="Tables" wide>
          {(tables.data?.tables ?? []).map((table) => (
            <details key={table.name}>
              <summary><code>{table.name}</code> <span class="muted">{table.rows == null ? 'live' : num(table.rows, 'row')}</span></summary>
              <p class="muted">{table.doc}</p>
              <Table label={`Columns of ${table.name}`} rows={table.columns} columns={[['name', 'column'], ['type'], ['unit'], ['meaning']]} />
            </details>
          ))}
        </Panel>
      </div>
    </>
  );
}
