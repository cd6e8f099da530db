// Questions that are asked again while the page is looked at: SQL over the job, and verdicts of the command line.
import { createContext } from 'preact';
import { useContext, useEffect, useRef, useState } from 'preact/hooks';
import { ask } from './session.js';

// session, job, scope ('host' where every rank is on the server's own host, else 'job'), live, targets
export const Page = createContext({});

// The server answers the same for so many times as long as a question about the job took it (command_server.py).
const REST = 4;

// In how many seconds to ask again: not before there is something new.
export const rest = (every, answer) => Math.max(every, REST * (answer?.took_s ?? 0));

export const asJob = (job) => (job ? `job=${encodeURIComponent(job)}` : '');

// Rows as objects. Of a job on one host the server's own engine answers, at once; of several, the command line merges.
export async function query(sql, { job, scope, signal, maxRows = 100000, timeout = 10 }) {
  if (scope === 'job') {
    const body = { sql, max_rows: maxRows, timeout_s: timeout };
    const { answer, remarks, exit_code: code, took_s } = await ask('POST', `/v1/job/query?${asJob(job)}`, body, { signal });
    if (!answer.columns) throw Object.assign(new Error(remarks[0]?.replace(/^probe: /, '') ?? `exit code ${code}`), { hint: remarks[1] });
    return { ...answer, missing: [], notes: [...answer.notes, ...remarks], took_s };
  }
  const body = { sql, max_rows: maxRows, timeout_s: timeout };
  const answer = await ask('POST', `/v1/query?${asJob(job)}`, body, { signal });
  const names = answer.columns.map((column) => column.name);
  return { ...answer, unanswered: [], rows: answer.rows.map((row) => Object.fromEntries(row.map((value, at) => [names[at], value]))) };
}

export const verdict = (name, { job, signal }) => ask('GET', `/v1/job/${name}?${asJob(job)}`, null, { signal });

// Calls `question(signal)` now, when `key` changes, and every `every` seconds while the page is live and visible. One
// question is under way at a time; what was known stays while the next answer is awaited.
function useAgain(question, key, every) {
  const { live } = useContext(Page);
  const [state, set] = useState({ loading: true });
  const newest = useRef(question);
  newest.current = question;
  useEffect(() => {
    if (key == null) return undefined;
    const ending = new AbortController();
    let timer;
    const run = async () => {
      let data;
      if (!document.hidden) {
        try {
          data = await newest.current(ending.signal);
          set({ data, at: Date.now() });
        } catch (error) {
          if (error.name === 'AbortError') return;
          set((before) => ({ ...before, loading: false, error }));
        }
      }
      if (live && every && !ending.signal.aborted) timer = setTimeout(run, 1000 * rest(every, data));
    };
    set((before) => ({ ...before, loading: !before.data }));
    run();
    const shown = () => !document.hidden && live && (clearTimeout(timer), run());
    document.addEventListener('visibilitychange', shown);
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', shown);
    };
  }, [key, live, every]);
  return state;
}

export function useSql(sql, every = 3) {
  const { job, scope } = useContext(Page);
  const key = sql && scope ? `${job} ${scope} ${sql}` : null;
  const state = useAgain((signal) => query(sql, { job, scope, signal }), key, scope === 'job' ? Math.max(every, 5) : every);
  return { ...state, sql, rows: state.data?.rows ?? [] };
}

export function useVerdict(name, every = 10) {
  const { job } = useContext(Page);
  return useAgain((signal) => verdict(name, { job, signal }), name && job != null ? `${name} ${job}` : null, every);
}

export function useAsked(path, every) {
  return useAgain((signal) => ask('GET', path, null, { signal }), path, every);
}
