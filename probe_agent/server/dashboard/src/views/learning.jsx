// Learning: loss, norm of the gradients, learning rate, and the variables that are watched.
import { useMemo } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { number } from '../format.js';
import { useSql } from '../live.js';
import { Answer, Panel, Verdict } from '../parts.jsx';

const curves = (last) => `
WITH newest AS (SELECT max(step) AS last FROM python.steps),
steps AS (
    SELECT step, median(loss) FILTER (isfinite(loss)) AS loss, median(grad_norm) FILTER (isfinite(grad_norm)) AS grad_norm, max(lr) AS lr,
        count(*) FILTER (NOT isfinite(loss)) AS bad
    FROM python.steps WHERE step > (SELECT last - ${last} FROM newest) GROUP BY step)
SELECT min(step) AS step, avg(loss) AS loss, min(loss) AS low, max(loss) AS high, avg(grad_norm) AS grad_norm, max(lr) AS lr, sum(bad)::BIGINT AS bad
FROM steps GROUP BY (step - (SELECT last FROM newest)) * 300 // ${Math.max(Number(last), 300)} ORDER BY step`;

const variables = (last) => `
SELECT expression, step, median(value) AS value FROM python.variables
WHERE value IS NOT NULL AND step > (SELECT max(step) - ${last} FROM python.variables) GROUP BY expression, step ORDER BY expression, step LIMIT 20000`;

const line = (rows, name, log) => (colours) => ({
  grid: { left: 64, right: 16, top: 12, bottom: 44 },
  xAxis: { type: 'value', name: 'step', min: 'dataMin', max: 'dataMax' },
  yAxis: { type: log ? 'log' : 'value', scale: true, axisLabel: { formatter: number } },
  tooltip: { trigger: 'axis', valueFormatter: number },
  series: [{ name, type: 'line', showSymbol: rows.length < 3, connectNulls: true, color: colours.series[0], data: rows.filter((row) => row[name] != null).map((row) => [row.step, row[name]]) }],
});

function words(rows) {
  const known = rows.filter((row) => row.loss != null);
  const bad = rows.find((row) => row.bad > 0);
  if (bad) return ['bad', `the loss is NaN or infinite since about step ${number(bad.step)}`];
  if (known.length < 8) return ['unknown', known.length ? 'too few losses to judge' : 'no loss has been recorded'];
  const fifth = Math.max(1, Math.floor(known.length / 5));
  const mean = (some) => some.reduce((sum, row) => sum + row.loss, 0) / some.length;
  const [before, now] = [mean(known.slice(0, fifth)), mean(known.slice(-fifth))];
  const spread = Math.max(...known.map((row) => row.high - row.low), 1e-12);
  const said = `loss ${number(now)} in the newest fifth of these steps, ${number(before)} in the oldest`;
  if (Math.abs(now - before) < spread / Math.sqrt(fifth)) return ['plain', `${said}: no clear change`];
  return now < before ? ['good', `${said}: it falls`] : ['warn', `${said}: it rises`];
}

export default function Learning({ params }) {
  const last = params.last ?? '200';
  const sql = curves(last);
  const steps = useSql(sql, 4);
  const sqlWatched = variables(last);
  const watched = useSql(sqlWatched, 5);
  const [tone, text] = words(steps.rows);
  const loss = useMemo(() => line(steps.rows, 'loss'), [steps.data]);
  const norm = useMemo(() => line(steps.rows, 'grad_norm'), [steps.data]);
  const rate = useMemo(() => line(steps.rows, 'lr'), [steps.data]);
  const names = [...new Set(watched.rows.map((row) => row.expression))];
  const values = useMemo(() => () => ({
    legend: { data: names },
    xAxis: { type: 'value', name: 'step', min: 'dataMin', max: 'dataMax' },
    yAxis: { type: 'value', scale: true, axisLabel: { formatter: number } },
    tooltip: { trigger: 'axis', valueFormatter: number },
    series: names.map((name) => ({ name, type: 'line', showSymbol: false, data: watched.rows.filter((row) => row.expression === name).map((row) => [row.step, row.value]) })),
  }), [watched.data]);
  const has = (name) => steps.rows.some((row) => row[name] != null);
  return (
    <>
      <Verdict tone={steps.loading ? 'plain' : tone}>{steps.loading ? 'reading the losses …' : text}</Verdict>
      <div class="panels">
        <Panel title="Loss" sql={sql} wide>
          <Answer of={steps} empty="No step has been recorded yet.">{has('loss') ? <Chart option={loss} label={`Loss: ${text}`} /> : <p class="state">No loss yet: it is the value that backward is called on.</p>}</Answer>
        </Panel>
        <Panel title="Gradient norm" sql={sql}>
          <Answer of={steps}>{has('grad_norm') ? <Chart option={norm} label="Norm of the gradients" /> : <p class="state">No norm yet: it comes with clip_grad_norm_, otherwise in a few sampled steps.</p>}</Answer>
        </Panel>
        <Panel title="Learning rate" sql={sql}>
          <Answer of={steps}>{has('lr') ? <Chart option={rate} label="Learning rate" /> : <p class="state">No optimizer has been seen.</p>}</Answer>
        </Panel>
        <Panel title="Watched variables" sql={sqlWatched} wide>
          <Answer of={watched} empty="Nothing is watched. To watch an expression: probe … watch-var 'EXPRESSION'."><Chart option={values} label="Watched variables" /></Answer>
        </Panel>
      </div>
    </>
  );
}
