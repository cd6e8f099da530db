// Console: Python in one rank of this host. Whoever may only read does not get this view, and the server refuses it to them.
import { useContext, useEffect, useRef, useState } from 'preact/hooks';
import { Page } from '../live.js';
import { Panel, RankChoice, Verdict } from '../parts.jsx';
import { ask } from '../session.js';

export default function Console({ params }) {
  const { ranks, job, session } = useContext(Page);
  const rank = Number(params.rank ?? ranks[0]?.rank ?? 0);
  const here = ranks.find((one) => one.rank === rank);
  const elsewhere = here && here.host !== session.host;
  const [code, setCode] = useState('');
  const [said, setSaid] = useState([]);
  const [running, setRunning] = useState(null);
  const past = useRef({ lines: [], at: 0 });
  const end = useRef(null);
  const name = useRef(`dashboard-${Math.random().toString(36).slice(2, 10)}`);
  useEffect(() => { end.current?.scrollIntoView({ block: 'nearest' }); }, [said]);

  const say = (kind, text) => setSaid((before) => [...before, { kind, text }].slice(-500));

  async function run(event) {
    event?.preventDefault();
    if (!code.trim() || running) return;
    const ending = new AbortController();
    setRunning(ending);
    past.current.lines.push(code);
    past.current.at = past.current.lines.length;
    say('code', code);
    setCode('');
    try {
      const chosen = new URLSearchParams({ rank, ...(job ? { job } : {}) });
      const response = await ask('POST', `/v1/eval?${chosen}`, { code, session: name.current, timeout_s: 60 }, { signal: ending.signal, raw: true });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { done, value } = await reader.read();
        rest += value ?? '';
        const lines = rest.split('\n');
        rest = lines.pop();
        for (const line of lines.filter(Boolean).map((one) => JSON.parse(one))) {
          if (line.text) say(line.stream, line.text);
          if (line.note) say('note', line.note);
          if (line.traceback) say('stderr', line.traceback);
          if (line.done && line.result != null) say('result', line.result);
          if (line.done && line.state !== 'finished' && !line.traceback) say('note', line.state);
        }
        if (done) break;
      }
    } catch (error) {
      say('stderr', error.name === 'AbortError' ? 'cancelled' : `${error.message}${error.hint ? `\ntry: ${error.hint}` : ''}`);
    }
    setRunning(null);
  }

  function pressed(event) {
    const { lines } = past.current;
    if (event.key === 'Enter' && !event.shiftKey) run(event);
    else if (event.key === 'ArrowUp' && !code.includes('\n') && past.current.at > 0) setCode(lines[--past.current.at]);
    else if (event.key === 'ArrowDown' && !code.includes('\n') && past.current.at < lines.length) setCode(lines[++past.current.at] ?? '');
    else return;
    event.preventDefault();
  }

  return (
    <>
      <Verdict tone="warn" more="Every line is written to the audit log.">what you type here runs in rank {rank} of the job</Verdict>
      <RankChoice params={params} />
      {elsewhere && <p class="state failure">Rank {rank} is on {here.host}: open the dashboard there, or type <code>probe … --rank {rank} eval</code>.</p>}
      <Panel title={`Rank ${rank}`} wide>
        <div class="console" role="log" aria-label="Output" tabIndex={0}>
          {said.length === 0 && <p class="muted">For example: <code>optimizer.param_groups[0]["lr"]</code></p>}
          {said.map((one, at) => <pre key={at} class={one.kind}>{one.kind === 'code' ? `>>> ${one.text.replaceAll('\n', '\n... ')}` : one.text}</pre>)}
          <span ref={end} />
        </div>
        <form onSubmit={run} class="row">
          <textarea aria-label="Python" rows={Math.min(8, code.split('\n').length)} value={code} spellcheck={false} onInput={(event) => setCode(event.target.value)} onKeyDown={pressed} placeholder="Python; Enter runs it, Shift-Enter begins a line" />
          {running ? <button type="button" onClick={() => running.abort()}>Cancel</button> : <button type="submit" class="main" disabled={elsewhere}>Run</button>}
        </form>
      </Panel>
    </>
  );
}
