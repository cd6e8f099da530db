// The page: who is let in, which job, which view, and the keys.
import { render } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import '../node_modules/d3-flame-graph/dist/d3-flamegraph.css';
import './style.css';
import { num } from './format.js';
import { asJob, Page, rest, useAsked } from './live.js';
import { Failure } from './parts.jsx';
import { ask, enter, leave } from './session.js';
import { change, link, useHash } from './state.js';
import { Theme, useTheme } from './theme.jsx';
import { VIEWS } from './views/index.js';

const EVERY_S = 2;

function useRanks(job, live) {
  const [state, set] = useState({ ranks: [], unanswered: [] });
  useEffect(() => {
    if (job == null) return undefined;
    const ending = new AbortController();
    let timer;
    const run = async () => {
      let answer;
      if (!document.hidden) {
        try {
          answer = await ask('GET', `/v1/job/ranks?${asJob(job)}`, null, { signal: ending.signal });
          const { rows = [], unanswered = [], answered = [] } = answer.answer;
          set({ job, ranks: rows, unanswered, answered, remarks: answer.remarks, known: true });
        } catch (error) {
          if (error.name === 'AbortError') return;
          set((before) => ({ ...before, error }));
        }
      }
      if (live && !ending.signal.aborted) timer = setTimeout(run, 1000 * rest(EVERY_S, answer));
    };
    set((before) => (before.job === job ? before : { job, ranks: [], unanswered: [] }));
    run();
    return () => { ending.abort(); clearTimeout(timer); };
  }, [job, live]);
  return state;
}

function App({ session }) {
  const { view, params } = useHash();
  const theme = useTheme();
  const [paused, pause] = useState(false);
  const [help, setHelp] = useState(false);
  const targets = useAsked('/v1/targets', 10);
  const living = (targets.data?.targets ?? []).filter((one) => one.alive);
  const jobs = [...new Map(living.map((one) => [one.job || '', one])).keys()];
  // The job that was there first stays: another one that begins, or is all that is left, does not take its place.
  const first = useRef(null);
  if (first.current == null && living.length) first.current = jobs[0] ?? '';
  const job = params.job || first.current || (targets.data ? '' : null);
  const hasEnded = Boolean(job) && targets.data != null && !jobs.includes(job) && targets.data.targets.some((one) => one.job === job);
  const found = useRanks(job, !paused);
  // Where every rank of the job is a target of this host, its own engine answers; that is known before the ranks are.
  const mine = living.filter((one) => !job || one.job === job);
  const isWhole = mine.length > 0 && mine.every((one) => one.world_size <= mine.length);
  const isHere = found.known ? !found.ranks.some((one) => one.host !== session.host) : isWhole ? true : null;
  const scope = isHere == null ? null : isHere ? 'host' : 'job';
  const page = useMemo(
    () => ({ session, job, scope, live: !paused, ranks: found.ranks, unanswered: found.unanswered, answered: found.answered, params, found }),
    [session, job, scope, paused, found, params],
  );
  const shown = VIEWS.filter((one) => session.role === 'control' || !one.control);
  const current = shown.find((one) => one.name === view) ?? shown[0];

  useEffect(() => {
    document.title = `${current.title} · Probe`;
  }, [current]);

  useEffect(() => {
    const pressed = (event) => {
      const within = event.composedPath()[0];
      if (event.ctrlKey || event.metaKey || event.altKey || within.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(within.tagName)) return;
      const at = shown.findIndex((one) => one.key === event.key);
      if (at >= 0) location.hash = link(shown[at].name);
      else if (event.key === 'p') pause((before) => !before);
      else if (event.key === 't') theme.next();
      else if (event.key === '?') setHelp((before) => !before);
      else if (event.key === 'Escape') setHelp(false);
      else return;
      event.preventDefault();
    };
    window.addEventListener('keydown', pressed);
    return () => window.removeEventListener('keydown', pressed);
  });

  return (
    <Theme.Provider value={theme}>
      <Page.Provider value={page}>
        <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById('main').focus(); }}>Skip to the answer</a>
        <header class="bar">
          <strong class="name"><img src="/dashboard/icon.svg" alt="" width="22" height="22" /> Probe</strong>
          {jobs.length > 1 || hasEnded || params.job ? (
            <label class="choice">Job
              <select value={job ?? ''} onChange={(event) => change({ job: event.target.value }, true)}>
                {[...new Set([...jobs, ...(job ? [job] : [])])].map((one) => <option key={one} value={one}>{one || 'no name'}</option>)}
              </select>
            </label>
          ) : <span class="muted">{job ? `job ${job}` : ''} on {session.host}</span>}
          <label class="choice">Last
            <select value={params.last ?? '200'} onChange={(event) => change({ last: event.target.value })}>
              {['50', '200', '1000', '10000'].map((one) => <option key={one} value={one}>{num(Number(one), 'step')}</option>)}
            </select>
          </label>
          <span class="space" />
          <button type="button" aria-pressed={paused} onClick={() => pause(!paused)} title="p">{paused ? 'Paused' : 'Live'}</button>
          <button type="button" onClick={theme.next} title="t">{{ auto: 'Auto', light: 'Light', dark: 'Dark' }[theme.chosen]}</button>
          <button type="button" onClick={() => setHelp(!help)} aria-expanded={help} title="?">Keys</button>
          {session.role === 'control' ? <span class="tag">control</span> : <span class="tag">read only</span>}
          <button type="button" onClick={leave}>Leave</button>
        </header>
        {help && (
          <aside class="help" aria-label="Keys">
            <dl>
              {shown.map((one) => <div key={one.name}><dt><kbd>{one.key}</kbd></dt><dd>{one.title}</dd></div>)}
              <div><dt><kbd>p</kbd></dt><dd>pause or go on</dd></div>
              <div><dt><kbd>t</kbd></dt><dd>dark, light or as the system</dd></div>
              <div><dt><kbd>?</kbd></dt><dd>these keys</dd></div>
            </dl>
          </aside>
        )}
        <nav aria-label="Views">
          <ul>
            {shown.map((one) => <li key={one.name}><a href={link(one.name)} aria-current={one === current ? 'page' : undefined}>{one.title}</a></li>)}
          </ul>
        </nav>
        <main id="main" tabIndex={-1}>
          <h1>{current.title}</h1>
          {found.known && (targets.error?.status === 0 || found.error?.status === 0) && <div class="partial" role="alert">The host server does not answer. What is shown is older; it is asked again and again.</div>}
          {hasEnded && <div class="partial" role="alert">The job {job} has ended. What is shown is what its ranks on this host have left; how each ended: <code>probe list --dead</code></div>}
          {targets.error && !targets.data ? <Failure error={targets.error} />
            : found.error && !found.known && !hasEnded ? <Failure error={found.error} />
              : targets.data && !living.length && !hasEnded ? <Nobody />
                : <current.body key={`${current.name} ${job}`} params={params} />}
        </main>
      </Page.Provider>
    </Theme.Provider>
  );
}

function Nobody() {
  return (
    <div class="state" role="status">
      <p>No target runs on this host.</p>
      <p class="muted">Attach to one: <code>probe PID inject</code>, or start it with <code>PROBE=1</code>. This page shows it within ten seconds.</p>
    </div>
  );
}

function Outside({ error }) {
  return (
    <main class="outside">
      <h1>Probe</h1>
      <Failure error={error} />
      <p>Type <code>probe … dashboard</code> where you use Probe: it prints an address that lets this browser in, once.</p>
    </main>
  );
}

function Door() {
  const [state, set] = useState({});
  useEffect(() => {
    enter().then((session) => set({ session }), (error) => set({ error }));
  }, []);
  if (state.error) return <Outside error={state.error} />;
  return state.session ? <App session={state.session} /> : <p class="starting" role="status">Opening a session …</p>;
}

const root = document.getElementById('app');
root.textContent = '';
render(<Door />, root);
