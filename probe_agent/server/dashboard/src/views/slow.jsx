// Which rank is slow? Ranks by steps, as many cells as the screen shows: the database makes them, not the browser.
import { useContext, useMemo, useState } from 'preact/hooks';
import { cells, Chart } from '../chart.jsx';
import { num, number, percent, seconds } from '../format.js';
import { Page, useSql, useVerdict } from '../live.js';
import { Answer, Choice, Command, Panel, Table, Verdict } from '../parts.jsx';
import { change, link } from '../state.js';

// Rows and columns of the picture. The slowest ranks have a row each; the others share the lower half, by their worst.
const ROWS = 128;
const COLUMNS = 200;
// A rank is slow in a step if it is this share of the job's median step behind.
const SLOW = 0.1;

const METRICS = [
  ['late', 'late for the first collective'], ['duration', 'step time'], ['data_wait', 'waiting for data'], ['forward', 'forward'],
  ['backward', 'backward'], ['optimizer', 'optimizer'], ['other', 'other'],
];

// Calls that C++ makes are read from Flight Recorder every so often: the newest step for which every rank has been read.
export const READ = `
dense AS (SELECT mode(seen_by) AS source FROM python.collectives WHERE op NOT IN ('send', 'recv')),
read AS (SELECT min(last) AS last FROM (
    SELECT max(step) AS last FROM python.collectives WHERE seen_by = (SELECT source FROM dense) GROUP BY rank))`;

function values(metric, last) {
  if (metric === 'late') {
    return `${READ.trim()},
came AS (
    SELECT rank, step, min(epoch_us(start)) / 1e6 AS arrived FROM python.collectives
    WHERE step > (SELECT last - ${last} FROM read) AND step <= (SELECT last FROM read) AND op NOT IN ('send', 'recv')
    GROUP BY rank, step),
cells AS (SELECT rank, step, arrived - median(arrived) OVER (PARTITION BY step) AS off FROM came)`;
  }
  return `cells AS (
    SELECT rank, step, ${metric} - median(${metric}) OVER (PARTITION BY step) AS off FROM python.steps
    WHERE step > (SELECT last - ${last} FROM newest))`;
}

export const heat = (metric, last) => `
WITH newest AS (SELECT max(step) AS last FROM python.steps),
usual AS (SELECT median(duration) AS step FROM python.steps WHERE step > (SELECT last - ${last} FROM newest)),
${values(metric, last)},
shares AS (SELECT rank, step, off / (SELECT step FROM usual) AS share FROM cells WHERE off IS NOT NULL),
ranks AS (
    SELECT rank, count(*) AS steps, count(*) FILTER (share > ${SLOW}) AS slow, max(share) AS worst, avg(greatest(share, 0)) AS behind
    FROM shares GROUP BY rank),
ordered AS (SELECT *, row_number() OVER (ORDER BY slow DESC, behind DESC, rank) - 1 AS place, count(*) OVER () AS num FROM ranks),
rows AS (
    SELECT *, CASE WHEN num <= ${ROWS} OR place < ${ROWS / 2} THEN place
        ELSE ${ROWS / 2} + (place - ${ROWS / 2}) * ${ROWS / 2} // (num - ${ROWS / 2}) END AS line FROM ordered),
bounds AS (SELECT min(step) AS first, greatest(max(step) - min(step) + 1, ${COLUMNS}) AS width FROM shares),
cells_shown AS (
    SELECT line, (step - first) * ${COLUMNS} // width AS col, round(100 * max(share)) AS percent
    FROM shares JOIN rows USING (rank), bounds GROUP BY ALL),
picture AS (SELECT DISTINCT line, unnest(range(${COLUMNS})) AS col FROM rows),
lines AS (
    SELECT line, list(CASE WHEN percent IS NOT NULL THEN greatest(-100, least(percent, 100))::TINYINT END ORDER BY col) AS percents
    FROM picture LEFT JOIN cells_shown USING (line, col) GROUP BY line)
SELECT line, min(rank) AS rank, count(*) AS num_ranks, max(slow) AS slow, max(steps) AS steps, max(worst) AS worst,
    avg(behind) * (SELECT step FROM usual) AS behind_s, any_value(first) AS first, any_value(width) AS width,
    any_value(percents) AS percents
FROM rows JOIN lines USING (line), bounds GROUP BY line ORDER BY line`;

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// From half a step ahead over the median to half a step behind, in percent of a step.
function mixed([ahead, median, behind], percents) {
  const part = Math.min(1, Math.abs(percents) / 50);
  const end = percents < 0 ? ahead : behind;
  return median.map((value, at) => Math.round(value + (end[at] - value) * part));
}

export default function Slow({ params }) {
  const { ranks } = useContext(Page);
  const last = params.last ?? '200';
  const metric = METRICS.some(([name]) => name === params.metric) ? params.metric : 'late';
  const sql = heat(metric, last);
  const map = useSql(sql, 5);
  const compare = useVerdict('compare', 15);
  const [cell, tell] = useState('');
  const told = compare.data?.answer?.verdict;
  const rows = map.rows;
  const first = rows[0]?.first ?? 0;
  const width = rows[0]?.width ?? COLUMNS;

  const names = rows.map((row) => (row.num_ranks > 1 ? `${number(row.num_ranks)} ranks from ${row.rank}` : `rank ${row.rank}`));
  const stepAt = (col) => first + Math.floor((col * width) / COLUMNS);
  const grid = useMemo(() => rows.map((row) => row.percents), [map.data]);

  const option = useMemo(() => (colours) => {
    const ramp = [rgb(colours.cold), rgb(colours.raised), rgb(colours.bad)];
    return {
      grid: { left: 96, right: 14, top: 10, bottom: 44 },
      xAxis: { type: 'category', name: 'step', data: Array.from({ length: COLUMNS }, (_, col) => stepAt(col)), axisLabel: { interval: 24, formatter: (value) => number(Number(value)) } },
      yAxis: { type: 'category', inverse: true, data: names, splitLine: { show: false } },
      series: [{
        type: 'custom', silent: true, data: [[0, 0]], clip: true,
        renderItem: ({ coordSys: box }) => {
          const ratio = window.devicePixelRatio || 1;
          const picture = cells(grid.length, COLUMNS, box.width * ratio, box.height * ratio, (line, col) => (grid[line][col] == null ? null : mixed(ramp, grid[line][col])));
          return { type: 'image', style: { image: picture, x: box.x, y: box.y, width: box.width, height: box.height } };
        },
      }],
    };
  }, [map.data]);

  function point([col, line], isClick) {
    const percents = grid[line]?.[col];
    if (percents == null) return tell('');
    if (isClick) location.hash = link('step', { step: stepAt(col) });
    return tell(`${names[line]}, step ${number(stepAt(col))}: ${percents >= 0 ? 'behind' : 'ahead of'} the median by ${Math.abs(percents)} %${Math.abs(percents) === 100 ? ' or more' : ''} of a step. Click to see the step.`);
  }

  const worst = rows.filter((row) => row.num_ranks === 1 && row.slow > 0).slice(0, 20);
  return (
    <>
      <Verdict tone={told ? (told.state === 'nobody' ? 'good' : told.state === 'not enough data' ? 'unknown' : 'warn') : 'plain'}>
        {told?.sentence ?? (compare.error ? compare.error.message : 'comparing the ranks …')}
      </Verdict>
      <Choice name="metric" label="Colour" params={params} fallback="late" options={METRICS} />
      <div class="panels">
        <Panel title="Ranks by steps" note={ranks.length ? `${num(ranks.length, 'rank')}, the most often slow on top` : 'the most often slow on top'} sql={sql} wide>
          <Answer of={map} empty={metric === 'late' ? 'No collective of these steps has been recorded. Choose another colour: step time.' : 'No step has been recorded yet.'}>
            <Chart
              option={option} height={Math.min(560, 64 + Math.max(rows.length * (rows.length > 40 ? 3.5 : 18), 60))}
              label={`Deviation of each rank from the median of its step; most often slow: ${worst.slice(0, 3).map((row) => `rank ${row.rank}`).join(', ') || 'none'}`}
              onPoint={point}
            />
            <p class="legend"><span>half a step ahead</span><i class="ramp" /><span>half a step behind</span><span class="told" aria-live="polite">{cell || 'Point at a cell.'}</span></p>
          </Answer>
        </Panel>
        <Panel title="Most often slow" note={`more than ${percent(SLOW)} of a step behind the median`} wide>
          <Answer of={map}>{worst.length ? (
            <Table label="Ranks that are often slow" rows={worst} onRow={(row) => change({ rank: row.rank })} columns={[
              ['rank', 'rank', null, true], ['slow', 'slow steps', (value, row) => `${number(value)} of ${number(row.steps)}`, true],
              ['worst', 'worst', percent, true], ['behind_s', 'behind, on average', seconds, true]]} />
          ) : <p class="state">{rows.length ? 'No rank is often behind.' : 'Nothing to judge by.'}</p>}</Answer>
        </Panel>
        <Panel title="Who costs the job time" note="probe … compare" wide>
          <Answer of={compare}>
            <Table label="Cost of each rank" rows={compare.data?.answer?.rows ?? []} columns={[
              ['who'], ['host'], ['cost', 'costs a step', seconds, true], ['share', 'of the time', percent, true], ['often', 'of the steps', percent, true], ['phase'], ['where', 'where', (value) => value ?? '–']]} />
            {(compare.data?.answer?.clocks ?? []).map((one) => <p class="muted" key={one.host}>clock of {one.host}: {seconds(Math.abs(one.offset))} {one.offset > 0 ? 'ahead of' : 'behind'} ours, ±{seconds(one.uncertainty)}</p>)}
            <Command of={compare.data} />
          </Answer>
        </Panel>
      </div>
    </>
  );
}
