// Where does the time go? Phases stacked by step, the median rank beside the worst, and the modules by area.
import { useMemo } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { num, percent, seconds } from '../format.js';
import { useSql } from '../live.js';
import { Answer, Panel, RankChoice, Verdict } from '../parts.jsx';

const PHASES = ['data_wait', 'forward', 'backward', 'optimizer', 'evaluation', 'generation', 'other'];
const BINS = 80;

const phases = (last, rank) => `
WITH newest AS (SELECT max(step) AS last FROM python.steps),
recent AS (FROM python.steps WHERE step > (SELECT last - ${last} FROM newest)),
own AS (SELECT rank, avg(duration - coalesce(backward, 0)) AS own FROM recent GROUP BY rank),
worst AS (SELECT ${rank === '' ? 'arg_max(rank, own)' : Number(rank)} AS rank FROM own),
steps AS (
    SELECT 'median' AS who, step, ${PHASES.map((name) => `median(coalesce(${name}, 0)) AS ${name}`).join(', ')} FROM recent GROUP BY step
    UNION ALL SELECT 'worst' AS who, step, ${PHASES.map((name) => `coalesce(${name}, 0) AS ${name}`).join(', ')} FROM recent WHERE rank = (SELECT rank FROM worst))
SELECT who, min(step) AS step, (SELECT rank FROM worst) AS rank, ${PHASES.map((name) => `avg(${name}) AS ${name}`).join(', ')}
FROM steps GROUP BY who, (step - (SELECT last FROM newest)) * ${BINS} // ${Math.max(Number(last), BINS)} ORDER BY who, step`;

const modules = (rank) => `
WITH sampled AS (SELECT DISTINCT step FROM python.torch_trace WHERE phase = 'train' ORDER BY step DESC LIMIT 10)
SELECT module, stage, sum(self_duration) / (SELECT count(*) FROM sampled) / count(DISTINCT rank) AS seconds
FROM python.torch_trace WHERE step IN (FROM sampled)${rank === '' ? '' : ` AND rank = ${Number(rank)}`} GROUP BY module, stage HAVING sum(self_duration) > 0 ORDER BY seconds DESC LIMIT 400`;

function stacked(rows, colours, top) {
  return {
    legend: { data: PHASES.filter((name) => rows.some((row) => row[name] > 0)) },
    xAxis: { type: 'category', name: 'step', data: rows.map((row) => row.step) },
    yAxis: { type: 'value', max: rounded(top), axisLabel: { formatter: seconds } },
    tooltip: { trigger: 'axis', valueFormatter: seconds },
    series: PHASES.map((name, at) => ({ name, type: 'bar', stack: 'step', barCategoryGap: '0%', color: colours.series[at], data: rows.map((row) => row[name]) })),
  };
}

// The same end for both charts, at a line of the grid.
function rounded(top) {
  const unit = 10 ** Math.floor(Math.log10(top || 1)) / 2;
  return Math.ceil(top / unit) * unit;
}

const total = (row) => PHASES.reduce((sum, name) => sum + row[name], 0);

// A tree from the dotted paths of the modules.
function tree(rows) {
  const root = { children: new Map() };
  for (const row of rows) {
    let at = root;
    for (const part of row.module.split('.')) {
      if (!at.children.has(part)) at.children.set(part, { name: part, children: new Map(), own: 0 });
      at = at.children.get(part);
    }
    at.own = (at.own ?? 0) + row.seconds;
  }
  const asNode = (node) => {
    const children = [...node.children.values()].map(asNode);
    if (node.own && children.length) children.push({ name: `${node.name} itself`, value: node.own });
    return children.length ? { name: node.name, children, value: children.reduce((sum, one) => sum + one.value, 0) } : { name: node.name, value: node.own };
  };
  return [...root.children.values()].map(asNode);
}

export default function Time({ params }) {
  const last = params.last ?? '200';
  const rank = params.rank ?? '';
  const sql = phases(last, rank);
  const steps = useSql(sql, 5);
  const sqlModules = modules(params.rank ?? '');
  const parts = useSql(sqlModules, 10);
  const median = steps.rows.filter((row) => row.who === 'median');
  const worst = steps.rows.filter((row) => row.who === 'worst');
  const top = Math.max(0, ...steps.rows.map(total));
  const sums = PHASES.map((name) => [name, median.reduce((sum, row) => sum + row[name], 0)]).sort((a, b) => b[1] - a[1]);
  const all = sums.reduce((sum, [, value]) => sum + value, 0);
  const before = useMemo(() => (colours) => stacked(median, colours, top), [steps.data]);
  const beside = useMemo(() => (colours) => stacked(worst, colours, top), [steps.data]);
  const areas = useMemo(() => (colours) => ({
    tooltip: { formatter: ({ name, value, treePathInfo }) => `${treePathInfo.slice(1).map((one) => one.name).join('.') || name}\n${seconds(value)} a step` },
    series: [{
      type: 'treemap', data: tree(parts.rows), roam: false, nodeClick: 'zoomToNode', top: 4, bottom: 38, left: 4, right: 4,
      breadcrumb: { bottom: 4, itemStyle: { color: colours.raised, textStyle: { color: colours.text }, borderColor: colours.line } },
      name: 'all modules', label: { formatter: ({ name, value }) => `${name}\n${seconds(value)}`, overflow: 'truncate', lineHeight: 16 },
      upperLabel: { show: true, height: 22, formatter: ({ name, value }) => `${name}  ${seconds(value)}`, color: colours.text, backgroundColor: colours.raised },
      itemStyle: { borderColor: colours.surface, borderWidth: 1, gapWidth: 1 },
      levels: [{ itemStyle: { gapWidth: 2 } }, { colorSaturation: [0.35, 0.6], itemStyle: { borderColorSaturation: 0.6, gapWidth: 1 } }, { colorSaturation: [0.3, 0.5] }],
    }],
  }), [parts.data]);
  return (
    <>
      <Verdict>{all ? `${sums.filter(([, value]) => value / all > 0.02).slice(0, 4).map(([name, value]) => `${name} ${percent(value / all)}`).join(', ')} of a step of ${seconds(all / median.length)}` : steps.loading ? 'reading the steps …' : 'no step has been recorded yet'}</Verdict>
      <RankChoice params={params} label="Beside it" any="the worst rank" />
      <div class="panels">
        <Panel title="Median rank" note={`last ${num(Number(last), 'step')}`} sql={sql}>
          <Answer of={steps} empty="No step has been recorded yet."><Chart option={before} label="Phases of the steps of the median rank" /></Answer>
        </Panel>
        <Panel title={worst.length ? `Rank ${worst[0].rank}` : 'Worst rank'} note={rank === '' ? 'most time outside backward, where ranks wait for each other' : ''} sql={sql}>
          <Answer of={steps} empty="No step has been recorded yet."><Chart option={beside} label={`Phases of the steps of rank ${worst[0]?.rank}`} /></Answer>
        </Panel>
        <Panel title="Modules" note="own time, average over ten sampled steps; click to look inside" sql={sqlModules} wide>
          <Answer of={parts} empty="No step has been sampled yet: module times are taken in one step of trace.every."><Chart option={areas} label="Modules by their own time" height={360} /></Answer>
        </Panel>
      </div>
    </>
  );
}
