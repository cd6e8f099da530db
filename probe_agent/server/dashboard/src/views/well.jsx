// Is it well? One state of the job, its pace against its best window, and what diagnose has found.
import { useContext, useMemo } from 'preact/hooks';
import { Chart } from '../chart.jsx';
import { age, num, number, ranks as rankList, seconds } from '../format.js';
import { Page, useSql, useVerdict } from '../live.js';
import { Answer, Command, Panel, Table, Unanswered, Verdict } from '../parts.jsx';
import { link } from '../state.js';

// Without a step for so long, and for ten median steps, the job is called silent.
const SILENT_S = 10;

const pace = (last) => `
WITH newest AS (SELECT max(step) AS last FROM python.steps),
steps AS (
    SELECT step, max(duration) AS duration, max(coalesce(evaluation, 0)) AS evaluation, max(coalesce(generation, 0)) AS generation
    FROM python.steps WHERE step > (SELECT last - ${last} FROM newest) GROUP BY step)
SELECT min(step) AS step, median(duration) AS duration, max(duration) AS slowest, max(evaluation) AS evaluation
FROM steps GROUP BY (step - (SELECT last FROM newest)) * 240 // ${Math.max(Number(last), 240)} ORDER BY step`;

const EVENTS = `
SELECT step, event, max(duration) AS duration FROM (
    SELECT step, 'evaluation' AS event, evaluation AS duration FROM python.steps WHERE evaluation > 0
    UNION ALL SELECT step, activity AS event, duration FROM python.stalls WHERE state = 'over'
    UNION ALL SELECT step, event, duration FROM torch.compile WHERE event IN ('compile', 'recompile') AND step >= 0)
GROUP BY step, event ORDER BY step DESC LIMIT 300`;

export function stateOf(found) {
  const rows = found.ranks;
  const seen = rows.map((one) => one.last_seen).filter((one) => typeof one === 'number');
  const steps = rows.map((one) => one.step).filter((one) => one != null);
  const usual = rows.map((one) => one.step_time).filter((one) => one != null).sort((a, b) => a - b)[rows.length >> 1];
  if (found.error) return { tone: 'unknown', text: 'no answer' };
  if (!rows.length) return { tone: 'unknown', text: 'no rank has answered' };
  if (!steps.length) return { tone: 'unknown', text: 'no step yet' };
  const silent = Math.min(...seen);
  if (silent > Math.max(SILENT_S, 10 * (usual ?? 0))) return { tone: 'bad', text: `silent for ${age(silent)}`, silent, usual, step: Math.max(...steps) };
  return { tone: 'good', text: 'stepping', usual, step: Math.max(...steps), silent };
}

export default function Well({ params }) {
  const { found } = useContext(Page);
  const last = params.last ?? '200';
  const state = stateOf(found);
  const steps = useSql(pace(last), 3);
  const events = useSql(EVENTS, 15);
  const diagnosis = useVerdict('diagnose', 30);
  const hang = useVerdict(state.silent && state.tone === 'bad' ? 'hang' : null, 5);
  const aborts = hang.data?.answer?.verdict?.aborts_in_s;
  const best = Math.min(...steps.rows.map((row) => row.duration).filter((one) => one > 0));
  const findings = diagnosis.data?.answer?.findings ?? [];
  const judged = (diagnosis.data?.answer?.silent ?? []).length;
  const unjudged = Object.keys(diagnosis.data?.answer?.unjudged ?? {}).length;
  const all = found.ranks.length + found.unanswered.length;

  const option = useMemo(() => (colours) => {
    const rows = steps.rows;
    const from = rows[0]?.step ?? 0;
    const marks = events.rows.filter((one) => one.step >= from);
    return {
      legend: { data: ['median', 'slowest'] },
      xAxis: { type: 'value', name: 'step', min: 'dataMin', max: 'dataMax' },
      yAxis: { type: 'value', min: 0, axisLabel: { formatter: seconds } },
      tooltip: { trigger: 'axis', valueFormatter: seconds },
      series: [
        { name: 'slowest', type: 'line', showSymbol: false, lineStyle: { width: 1 }, color: colours.series[5], data: rows.map((row) => [row.step, row.slowest]) },
        {
          name: 'median', type: 'line', showSymbol: false, color: colours.series[0], lineStyle: { width: 2 }, data: rows.map((row) => [row.step, row.duration]),
          markLine: {
            symbol: 'none', silent: true,
            data: [
              ...(Number.isFinite(best) ? [{ yAxis: best, lineStyle: { color: colours.good, type: 'dashed' }, label: { formatter: `best ${seconds(best)}`, color: colours.text, position: 'insideEndBottom' } }] : []),
              ...marks.slice(0, 40).map((one) => ({ xAxis: one.step, lineStyle: { color: colours.muted, type: 'dotted' }, label: { formatter: marks.length > 12 ? '' : one.event, color: colours.muted, fontSize: 10 } })),
            ],
          },
        },
      ],
    };
  }, [steps.data, events.data]);

  return (
    <>
      <div class={`big ${state.tone}`} role="status" aria-live="polite">
        <b>{!found.known ? 'asking the ranks …' : state.text}</b>
        {aborts > 0 && <span>torch gives up in {age(aborts)}</span>}
        {state.step != null && <span>step {number(state.step)}</span>}
        {state.tone === 'good' && state.usual && <span>{(1 / state.usual).toPrecision(3)} steps/s</span>}
        {state.usual && <span>{state.tone === 'good' ? '' : 'usually '}{seconds(state.usual)} a step{Number.isFinite(best) && best > 0 && `, ${seconds(best)} in the best window`}</span>}
        {found.known && <span>{found.ranks.length} of {num(all, 'rank')} answered</span>}
      </div>
      {state.tone === 'bad' && (
        <Verdict tone="bad" more={<a href={link('hang')}>Why: Is it hung, and why?</a>}>{hang.data?.answer?.verdict?.sentence ?? 'looking at every rank …'}</Verdict>
      )}
      <Unanswered answer={{ unanswered: found.unanswered, answered: found.answered ?? [] }} />
      <div class="panels">
        <Panel title="Step time" note="each point the slowest rank's median over its steps; dotted: events" sql={pace(last)} wide>
          <Answer of={steps} empty="No step has ended yet. The chart begins with the first one.">
            <Chart option={option} label={`Step time of the last ${last} steps; best window ${seconds(best)}`} height={240} />
          </Answer>
        </Panel>
        <Panel title="Findings" note="probe … diagnose" wide>
          <Answer of={diagnosis}>
            {findings.length === 0 && <p class="state">{judged ? `Nothing found: ${num(judged, 'rule')} judged what the ranks recorded` : 'No rule could judge yet'}{unjudged ? `, ${num(unjudged, 'rule')} could not.` : '.'}</p>}
            <ol class="findings">
              {findings.map((one) => (
                <li key={one.rule + one.where}>
                  <p><b>{one.sentence}</b></p>
                  <p class="muted">{one.rule} · {one.certainty} · {one.ranks.length === all ? 'all ranks' : `rank${one.ranks.length > 1 ? 's' : ''} ${rankList(one.ranks)}`}{one.cost_s != null && ` · ${seconds(one.cost_s)} a step`}{one.since_step != null && ` · since step ${one.since_step}`}</p>
                  <details><summary>Evidence and what to do</summary>
                    <ul>{one.evidence.map((text) => <li key={text}>{text}</li>)}</ul>
                    <ol>{one.advice.map((text) => <li key={text}>{text}</li>)}</ol>
                    {one.try_first && <p>Try first: <code>{one.try_first}</code></p>}
                  </details>
                </li>
              ))}
            </ol>
            <Command of={diagnosis.data} />
          </Answer>
        </Panel>
        <Panel title="Events" sql={EVENTS}>
          <Answer of={events} empty="No evaluation, stall or compilation has been recorded.">
            <Table label="Events" rows={events.rows.slice(0, 50)} columns={[['step', 'step', number, true], ['event'], ['duration', 'took', seconds, true]]} />
          </Answer>
        </Panel>
        <Panel title="Ranks">
          <Table label="Ranks" rows={found.ranks} columns={[['rank', 'rank', null, true], ['host'], ['pid', 'pid', null, true], ['step', 'step', number, true], ['step_time', 'step time', seconds, true], ['last_seen', 'last step', (value) => (typeof value === 'number' ? `${age(value)} ago` : value ?? '–'), true], ['state']]} />
        </Panel>
      </div>
    </>
  );
}
