// Memory: what takes it, whether it grows, and when it is full.
import { useContext, useMemo } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { mebibytes, number, seconds } from '../format.js';
import { Page, useSql, useVerdict } from '../live.js';
import { Answer, Command, Panel, RankChoice, Table, Verdict } from '../parts.jsx';

const UNKNOWN = 'too early to tell';
// As `probe … memory` says them, the one to look at first in front.
const STATES = ['grows', UNKNOWN, 'levelling off', 'not significant'];

const samples = (rank) => `
WITH one AS (FROM process.samples WHERE rank = ${Number(rank)}), bounds AS (SELECT min(ts) AS first, epoch(max(ts)) - epoch(min(ts)) AS width FROM one)
SELECT epoch_ms(min(ts)) AS ms, max(step) AS step, max(rss) AS rss, max(children_rss) AS workers, max(shm_used) AS shm
FROM one, bounds GROUP BY floor((epoch(ts) - epoch(first)) * 300 / greatest(width, 1)) ORDER BY ms`;

const device = (rank) => `
WITH one AS (FROM torch.memory WHERE rank = ${Number(rank)}), bounds AS (SELECT min(ts) AS first, epoch(max(ts)) - epoch(min(ts)) AS width FROM one)
SELECT device, epoch_ms(min(ts)) AS ms, max(allocated) AS allocated, max(reserved) AS reserved
FROM one, bounds GROUP BY device, floor((epoch(ts) - epoch(first)) * 300 / greatest(width, 1)) ORDER BY device, ms`;

export default function Memory({ params }) {
  const { ranks } = useContext(Page);
  const verdict = useVerdict('memory', 15);
  const targets = verdict.data?.answer?.targets ?? [];
  const sentences = verdict.data?.answer?.sentences ?? [];
  const order = targets.map((_, at) => at).sort((a, b) => STATES.indexOf(targets[a].state) - STATES.indexOf(targets[b].state));
  // By itself the rank that the verdict is about.
  const rank = params.rank ?? targets[order[0]]?.rank ?? ranks[0]?.rank ?? 0;
  const shown = targets.find((one) => String(one.rank) === String(rank));
  const growing = targets.filter((one) => one.state === 'grows');
  const sql = samples(rank);
  const over = useSql(sql, 5);
  const sqlDevice = device(rank);
  const onDevice = useSql(sqlDevice, 10);
  const trend = shown?.trends?.['memory of the process'];

  const lines = useMemo(() => (colours) => {
    const rows = over.rows;
    const end = rows.at(-1);
    const slope = trend?.state === 'grows' ? trend.per_second : null;
    const begin = rows[0];
    return {
      legend: { data: ['resident', 'loader workers', '/dev/shm in use', ...(slope ? ['slope'] : [])] },
      xAxis: { type: 'time' },
      yAxis: { type: 'value', axisLabel: { formatter: mebibytes } },
      tooltip: { trigger: 'axis', valueFormatter: mebibytes },
      series: [
        { name: 'resident', type: 'line', showSymbol: false, areaStyle: { opacity: 0.12 }, data: rows.map((row) => [row.ms, row.rss]) },
        { name: 'loader workers', type: 'line', showSymbol: false, data: rows.some((row) => row.workers > 0) ? rows.map((row) => [row.ms, row.workers]) : [] },
        { name: '/dev/shm in use', type: 'line', showSymbol: false, data: rows.map((row) => [row.ms, row.shm]) },
        ...(slope && end ? [{ name: 'slope', type: 'line', showSymbol: false, lineStyle: { type: 'dashed', color: colours.bad }, color: colours.bad, data: [[begin.ms, end.rss - (slope * (end.ms - begin.ms)) / 1000], [end.ms, end.rss]] }] : []),
      ],
    };
  }, [over.data, verdict.data]);

  const kinds = useMemo(() => (colours) => {
    const parts = [...(shown?.parts ?? [])].sort((a, b) => a.mib - b.mib);
    return {
      grid: { left: 190, right: 80, top: 6, bottom: 30 },
      xAxis: { type: 'value', axisLabel: { formatter: mebibytes } },
      yAxis: { type: 'category', data: parts.map((one) => one.name), axisLabel: { width: 180, overflow: 'truncate' } },
      tooltip: { formatter: ({ name, value }) => `${name}: ${mebibytes(value)}` },
      series: [{ type: 'bar', data: parts.map((one) => one.mib), label: { show: true, position: 'right', color: colours.text, formatter: ({ value }) => mebibytes(value) } }],
    };
  }, [verdict.data, rank]);

  const areas = useMemo(() => (colours) => ({
    tooltip: { formatter: ({ name, value }) => `${name}\n${mebibytes(value)}` },
    series: [{
      type: 'treemap', roam: false, nodeClick: false, breadcrumb: { show: false }, top: 4, bottom: 4, left: 4, right: 4,
      // The end of a path tells modules apart: DistributedDataParallel.module.blocks.first.mlp.0.
      label: { formatter: ({ name, value }) => `${name.split('.').slice(-3).join('.')}\n${mebibytes(value)}`, overflow: 'truncate', lineHeight: 16 }, itemStyle: { borderColor: colours.surface },
      data: (shown?.modules ?? []).map((one) => ({ name: one.module, value: one.mib })),
    }],
  }), [verdict.data, rank]);

  const full = shown && Object.entries(shown.trends).map(([name, one]) => [name, one.full]).find(([, one]) => one);
  return (
    <>
      <Verdict tone={growing.length ? 'bad' : targets.some((one) => one.state === UNKNOWN) || !targets.length || verdict.data?.answer?.unanswered?.length ? 'unknown' : 'good'} more={growing.length > 0 && targets.length > 1 && `memory grows on ${growing.length} of ${targets.length} ranks`}>
        {sentences[order[0]] ?? (verdict.error ? verdict.error.message : 'asking the ranks …')}
      </Verdict>
      <RankChoice params={params} fallback={String(rank)} />
      <div class="panels">
        <Panel title={`Memory of rank ${rank} over time`} sql={sql} wide>
          {full && <p class="state bad">{full[0]} is full {full[1].step != null ? `at step ${number(full[1].step)}, ` : ''}in {seconds(full[1].in_s)}</p>}
          <Answer of={over} empty="No sample yet: one is taken every second."><Chart option={lines} label={`Memory of rank ${rank} over time; ${trend ? trend.state : 'growth not judged yet'}`} /></Answer>
        </Panel>
        <Panel title="By kind" note={`rank ${rank}`}>
          <Answer of={verdict}>{shown?.parts?.length ? <Chart option={kinds} label="Memory by kind" height={50 + 26 * shown.parts.length} /> : <p class="state">This rank has not told.</p>}</Answer>
        </Panel>
        <Panel title="By module" note="parameters and buffers">
          <Answer of={verdict}>{shown?.modules?.length ? <Chart option={areas} label="Memory by module" height={240} /> : <p class="state">No module has been found.</p>}</Answer>
        </Panel>
        {onDevice.rows.length > 0 && (
          <Panel title="Device" sql={sqlDevice} wide>
            <Table label="Device memory" rows={onDevice.rows.slice(-20)} columns={[['device'], ['allocated', 'allocated', mebibytes, true], ['reserved', 'reserved', mebibytes, true]]} />
          </Panel>
        )}
        <Panel title="Ranks" note="probe … memory" wide>
          <Answer of={verdict}>
            <Table label="Memory of each rank" rows={verdict.data?.answer?.rows ?? []} columns={Object.keys(verdict.data?.answer?.rows?.[0] ?? { rank: 0 }).map((name) => [name, name.replace('_', ' '), ['rank', 'pid', 'step', 'full_at', 'host', 'growth', 'place', 'part'].includes(name) ? null : name === 'share' ? null : mebibytes, !['host', 'growth', 'place', 'part'].includes(name)])} />
            <Command of={verdict.data} />
          </Answer>
        </Panel>
      </div>
    </>
  );
}
