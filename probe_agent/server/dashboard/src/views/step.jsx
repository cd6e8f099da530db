// One step across ranks: a lane for each rank, its phases and collectives; how late each came is shaded, and how far apart
// the hosts' clocks may be is drawn beside it.
import { useContext, useMemo } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { num, number, seconds } from '../format.js';
import { Page, useSql, useVerdict } from '../live.js';
import { Answer, Panel, Table, Verdict } from '../parts.jsx';
import { change } from '../state.js';
import { READ } from './slow.jsx';

const LANES = 64;
// In the order in which they come in a step. Their ends are not recorded: they are drawn one after the other.
const PHASES = ['data_wait', 'forward', 'backward', 'optimizer', 'evaluation', 'generation', 'other'];

const NEWEST = `
WITH ${READ.trim()},
done AS (SELECT min(last) AS last FROM (SELECT max(step) AS last FROM python.steps GROUP BY rank))
SELECT least(coalesce((SELECT last FROM read), done.last), done.last) AS step FROM done`;

// The ranks with the most time of their own, which are those that are drawn.
const lanes = (step) => `
SELECT rank, host, step, epoch_us(ts) / 1e6 AS ended, duration, ${PHASES.map((name) => `coalesce(${name}, 0) AS ${name}`).join(', ')}
FROM python.steps WHERE step = ${step} ORDER BY duration - coalesce(backward, 0) DESC, rank LIMIT ${LANES}`;

const calls = (step) => `
WITH made AS (
    SELECT rank, host, "group", seq, op, bytes, epoch_us(start) / 1e6 AS start, duration, wait,
        (epoch_us(start) - min(epoch_us(start)) OVER (PARTITION BY "group", seq, op)) / 1e6 AS late
    FROM python.collectives WHERE step = ${step} AND state <> 'waiting'),
drawn AS (
    SELECT rank FROM python.steps WHERE step = ${step} ORDER BY duration - coalesce(backward, 0) DESC, rank LIMIT ${LANES})
SELECT * FROM made WHERE rank IN (FROM drawn) OR late = (SELECT max(late) FROM made) ORDER BY start LIMIT 5000`;

export default function Step({ params }) {
  const { ranks } = useContext(Page);
  const step = params.step ?? '';
  const newest = useSql(step ? null : NEWEST, 5);
  const shown = /^\d+$/.test(step) ? Number(step) : newest.rows[0]?.step;
  const sql = lanes(shown);
  const rows = useSql(shown == null ? null : sql, 0);
  const sqlCalls = calls(shown);
  const made = useSql(shown == null ? null : sqlCalls, 0);
  const compare = useVerdict('compare', 30);
  const clocks = Object.fromEntries((compare.data?.answer?.clocks ?? []).map((one) => [one.host, one]));
  const several = new Set(rows.rows.map((row) => row.host)).size > 1;
  // Onto one clock: offsets are those against the server's host.
  const fixed = (host, at) => at - (clocks[host]?.offset ?? 0);
  const begin = Math.min(...rows.rows.map((row) => fixed(row.host, row.ended) - row.duration));
  const latest = made.rows.reduce((worst, row) => (row.late > (worst?.late ?? 0) ? row : worst), null);
  // Calls that C++ makes are recorded with some delay.
  const behind = step || shown == null ? 0 : Math.max(0, ...ranks.map((one) => one.step ?? 0)) - shown;
  const height = 70 + rows.rows.length * (rows.rows.length > 24 ? 16 : 34);

  const option = useMemo(() => (colours) => {
    const lane = new Map(rows.rows.map((row, at) => [row.rank, at]));
    const bars = [];
    for (const row of rows.rows) {
      let from = fixed(row.host, row.ended) - row.duration - begin;
      for (const name of PHASES) {
        if (row[name] > 0) bars.push({ value: [lane.get(row.rank), from, from + row[name], name, row[name]], itemStyle: { color: colours.series[PHASES.indexOf(name)] } });
        from += row[name];
      }
    }
    const here = made.rows.filter((row) => lane.has(row.rank));
    const at = (row) => fixed(row.host, row.start) - begin;
    const bar = (share, up) => (_, api) => {
      const [x0, y] = api.coord([api.value(1), api.value(0)]);
      const [x1] = api.coord([api.value(2), api.value(0)]);
      const size = api.size([0, 1])[1];
      return { type: 'rect', shape: { x: x0, y: y - size * up, width: Math.max(1, x1 - x0), height: size * share }, style: { fill: api.visual('color') } };
    };
    return {
      grid: { left: 78, right: 20, top: 34, bottom: 44 },
      legend: { data: PHASES.filter((name) => rows.rows.some((row) => row[name] > 0)), selectedMode: false },
      xAxis: { type: 'value', name: 'time within the step', axisLabel: { formatter: seconds }, min: 0 },
      yAxis: { type: 'category', inverse: true, data: rows.rows.map((row) => `rank ${row.rank}`), splitLine: { show: true } },
      dataZoom: [{ type: 'inside', filterMode: 'weakFilter' }],
      tooltip: { formatter: ({ data, seriesName }) => data.text ?? `${seriesName === 'phases' ? data.value[3] : seriesName}\n${seconds(data.value[4])}` },
      series: [
        ...PHASES.map((name, nth) => ({ name, type: 'bar', data: [], color: colours.series[nth] })),
        { name: 'phases', type: 'custom', renderItem: bar(0.52, 0.4), encode: { x: [1, 2], y: 0 }, data: bars },
        { name: 'late', type: 'custom', renderItem: bar(0.24, -0.14), encode: { x: [1, 2], y: 0 }, data: here.filter((row) => row.late > 0).map((row) => ({ value: [lane.get(row.rank), at(row) - row.late, at(row), row.op, row.late], itemStyle: { color: colours.bad, opacity: 0.5 }, text: `rank ${row.rank}: ${row.op} ${row.seq >= 0 ? row.seq : ''} of group ${row.group}\n${seconds(row.late)} after the first` })) },
        { name: 'collective', type: 'scatter', symbol: 'triangle', symbolSize: 8, symbolOffset: [0, 8], itemStyle: { color: colours.text }, encode: { x: 0, y: 1 }, data: here.map((row) => ({ value: [at(row), lane.get(row.rank)], text: `rank ${row.rank}: ${row.op} ${row.seq >= 0 ? row.seq : ''} of group ${row.group}${row.duration ? `\ntook ${seconds(row.duration)}` : ''}` })) },
        { name: 'clock uncertainty', type: 'custom', encode: { x: [1, 2], y: 0 }, silent: true, renderItem: bar(0.08, -0.4), data: several ? rows.rows.filter((row) => clocks[row.host]).map((row) => ({ value: [lane.get(row.rank), Math.max(0, fixed(row.host, row.ended) - begin - clocks[row.host].uncertainty), fixed(row.host, row.ended) - begin + clocks[row.host].uncertainty], itemStyle: { color: colours.warn } })) : [] },
      ],
    };
  }, [rows.data, made.data, compare.data]);

  return (
    <>
      <Verdict tone={latest?.late > 0.1 * (rows.rows[0]?.duration ?? 1) ? 'warn' : 'plain'} more={behind > 20 && `the newest step of which every rank has told its collectives; the job is ${num(behind, 'step')} further`}>
        {shown == null ? (newest.loading ? 'looking for the newest step …' : 'no step has been recorded yet')
          : made.loading ? `step ${number(shown)} …` : latest ? `step ${number(shown)}: rank ${latest.rank} came last to ${latest.op}${latest.seq >= 0 ? ` ${number(latest.seq)}` : ''}, ${seconds(latest.late)} after the first`
            : `step ${number(shown)}: no collective has been recorded in it`}
      </Verdict>
      <form class="row" onSubmit={(event) => { event.preventDefault(); change({ step: new FormData(event.target).get('step') }, true); }}>
        <label class="choice">Step <input name="step" inputMode="numeric" pattern="[0-9]*" size={9} value={step} placeholder="newest" /></label>
        <button type="submit">Show</button>
        <button type="button" disabled={shown == null} onClick={() => change({ step: Math.max(0, shown - 1) })}>Previous</button>
        <button type="button" disabled={shown == null} onClick={() => change({ step: shown + 1 })}>Next</button>
        {step && <button type="button" onClick={() => change({ step: null })}>Newest</button>}
      </form>
      <div class="panels">
        <Panel title={shown == null ? 'Ranks' : `Step ${number(shown)}`} note={`${Math.min(rows.rows.length, LANES)} of ${num(ranks.length, 'rank')}, most own time first; triangles: collectives, red: how late`} sql={sql} wide>
          <Answer of={shown == null && !newest.loading ? newest : rows} empty={step ? `Step ${step} is not in the rings any more, or not there yet.` : 'No step has been recorded yet.'}>
            <Chart option={option} label={`Phases and collectives of step ${shown} on each rank`} height={height} />
            {several && <p class="muted">clocks: {Object.values(clocks).map((one) => `${one.host} ±${seconds(one.uncertainty)}`).join(', ') || 'not compared yet'} (yellow)</p>}
          </Answer>
        </Panel>
        <Panel title="Collectives" sql={sqlCalls} wide>
          <Answer of={made} empty="No collective has been recorded in this step.">
            <Table label="Collectives of the step" rows={made.rows} most={40} columns={[['rank', 'rank', null, true], ['group'], ['seq', 'seq', null, true], ['op'], ['bytes', 'bytes', number, true], ['late', 'late', seconds, true], ['duration', 'took', seconds, true], ['wait', 'waited', seconds, true]]} />
          </Answer>
        </Panel>
      </div>
    </>
  );
}
