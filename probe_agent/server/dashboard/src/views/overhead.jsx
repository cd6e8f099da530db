// Overhead: what Probe costs the job, as the recorder measures it itself.
import { useMemo } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { number, percent, seconds } from '../format.js';
import { useSql } from '../live.js';
import { Answer, Panel, Table, Verdict } from '../parts.jsx';

const SOURCES = `
SELECT source, thread, sum(calls) AS calls, sum(seconds) / sum(calls) AS per_call, avg(share) AS share, max(uncertainty) AS uncertainty, max("every") AS every_steps
FROM python_overhead GROUP BY source, thread ORDER BY share DESC`.replace('python_overhead', '(FROM probe.overhead WHERE ts > (SELECT max(ts) - INTERVAL 5 MINUTE FROM probe.overhead))');

const OVER_TIME = `
SELECT epoch_ms(time_bucket(INTERVAL 30 SECOND, ts)) AS ms, max(share) AS share FROM (
    SELECT rank, ts, sum(share) AS share FROM probe.overhead WHERE thread = 'training' GROUP BY rank, ts)
GROUP BY ms ORDER BY ms`;

const ERRORS = `SELECT host, rank, source, message, max(count) AS count FROM probe.errors GROUP BY ALL ORDER BY count DESC LIMIT 100`;

export default function Overhead() {
  const sources = useSql(SOURCES, 10);
  const over = useSql(OVER_TIME, 10);
  const errors = useSql(ERRORS, 20);
  const training = sources.rows.filter((row) => row.thread === 'training').reduce((sum, row) => sum + row.share, 0);
  const thread = sources.rows.filter((row) => row.thread !== 'training').reduce((sum, row) => sum + row.share, 0);
  const option = useMemo(() => () => ({
    grid: { left: 64, right: 16, top: 12, bottom: 30 },
    xAxis: { type: 'time' },
    yAxis: { type: 'value', min: 0, axisLabel: { formatter: percent } },
    tooltip: { trigger: 'axis', valueFormatter: percent },
    series: [{ name: 'of the training thread', type: 'line', showSymbol: over.rows.length < 3, areaStyle: { opacity: 0.12 }, data: over.rows.map((row) => [row.ms, row.share]) }],
  }), [over.data]);
  return (
    <>
      <Verdict tone={!sources.rows.length ? 'unknown' : training > 0.02 ? 'warn' : 'good'}>
        {sources.rows.length ? `Probe takes ${percent(training)} of the training thread's time, and ${percent(thread)} of a processor on its own thread` : sources.loading ? 'reading the costs …' : 'not measured yet: the first figures come ten seconds after the attach'}
      </Verdict>
      <div class="panels">
        <Panel title="Training thread" note="the rank where it costs most" sql={OVER_TIME} wide>
          <Answer of={over} empty="Not measured yet."><Chart option={option} label={`Share of the training thread's time: ${percent(training)}`} height={200} /></Answer>
        </Panel>
        <Panel title="Sources" note="average over the ranks, last five minutes" sql={SOURCES} wide>
          <Answer of={sources} empty="Not measured yet.">
            <Table label="Cost by source" rows={sources.rows} columns={[['source'], ['thread'], ['share', 'share of the time', percent, true], ['per_call', 'a call', seconds, true], ['uncertainty', '±', (value) => (value == null ? '–' : seconds(value)), true], ['calls', 'calls', number, true], ['every_steps', 'one step in', (value) => value ?? '–', true]]} />
          </Answer>
        </Panel>
        <Panel title="Failures of Probe itself" sql={ERRORS} wide>
          <Answer of={errors} empty="None has been recorded.">
            <Table label="Failures" rows={errors.rows} columns={[['host'], ['rank', 'rank', null, true], ['source'], ['message'], ['count', 'count', number, true]]} />
          </Answer>
        </Panel>
      </div>
    </>
  );
}
