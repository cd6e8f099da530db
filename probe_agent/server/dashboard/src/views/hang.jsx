// Is it hung, and why? The verdict of `hang`, then the stacks: ranks that stand elsewhere than the others come first.
import { useContext } from 'preact/hooks';
import { age, num, ranks as rankList, seconds } from '../format.js';
import { Page, useSql, useVerdict } from '../live.js';
import { Answer, Command, Panel, Table, Unanswered, Verdict } from '../parts.jsx';

const STACKS = `
WITH stacks AS (
    SELECT rank, list(func || ' (' || regexp_extract(file, '[^/]*$') || ':' || lineno || ')' ORDER BY depth) AS frames
    FROM python.backtrace GROUP BY rank)
SELECT frames, list(rank ORDER BY rank) AS ranks, count(*) AS num FROM stacks GROUP BY frames ORDER BY num, ranks[1]`;

const TONES = { 'no hang': 'good', hangs: 'bad', died: 'bad', slow: 'warn', unknown: 'unknown' };

export default function Hang() {
  const { ranks } = useContext(Page);
  const hang = useVerdict('hang', 5);
  const stacks = useSql(STACKS, 5);
  const told = hang.data?.answer?.verdict;
  const aborts = told?.aborts_in_s;
  const tone = told ? TONES[told.state] ?? (told.exit_code === 0 ? 'good' : told.exit_code === 1 ? 'bad' : 'unknown') : 'plain';
  return (
    <>
      <Verdict tone={tone} more={aborts > 0 && `torch gives up on it in ${age(aborts)}`}>
        {told?.sentence ?? (hang.error ? hang.error.message : 'looking at every rank twice, a second apart …')}
      </Verdict>
      <Unanswered answer={hang.data?.answer} />
      <div class="panels">
        <Panel title="Stacks" note="equal ones together, the odd ones first" sql={STACKS} wide>
          <Answer of={stacks} empty="No stack could be read.">
            {stacks.rows.map((row, at) => (
              <details class="stack" key={row.ranks.join()} open={at < 3}>
                <summary><b>{row.num === ranks.length ? `all ${num(row.num, 'rank')}` : `rank${row.num > 1 ? 's' : ''} ${rankList(row.ranks)}`}</b> {told?.ranks?.some((rank) => row.ranks.includes(rank)) && <span class="tag bad">waited for</span>} <code>{row.frames[0]}</code></summary>
                <ol>{row.frames.map((frame, nth) => <li key={nth}><code>{frame}</code></li>)}</ol>
              </details>
            ))}
          </Answer>
        </Panel>
        <Panel title="Ranks" note="probe … hang" wide>
          <Answer of={hang}>
            <Table label="What each rank does" rows={hang.data?.answer?.rows ?? []} columns={[['rank', 'rank', null, true], ['host'], ['pid', 'pid', null, true], ['step', 'step', null, true], ['last_step', 'last step', (value) => (value == null ? '–' : `${seconds(value)} ago`), true], ['in_call', 'in call', (value) => value ?? '–'], ['doing', 'doing', (value) => value ?? '–'], ['line', 'line', (value) => value ?? '–']]} />
            {(hang.data?.answer?.notes ?? []).map((note) => <p class="muted" key={note}>{note}</p>)}
            <Command of={hang.data} />
          </Answer>
        </Panel>
      </div>
    </>
  );
}
