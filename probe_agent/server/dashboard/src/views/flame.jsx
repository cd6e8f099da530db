// Flame graph of one rank, from the recorded module times or from a CPU profile, and its difference from the majority.
import flamegraph from 'd3-flame-graph';
import { select } from 'd3-selection';
import { useContext, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { seconds } from '../format.js';
import { Page, useSql } from '../live.js';
import { Answer, Choice, Failure, Panel, RankChoice, Verdict } from '../parts.jsx';
import { ask } from '../session.js';

const modules = (rank) => `
WITH sampled AS (SELECT DISTINCT step FROM python.torch_trace WHERE phase = 'train' ORDER BY step DESC LIMIT 10),
of_rank AS (
    SELECT rank, stage, module, sum(self_duration) / count(DISTINCT step) AS own
    FROM python.torch_trace WHERE step IN (FROM sampled) GROUP BY rank, stage, module),
usual AS (SELECT stage, module, median(own) AS usual FROM of_rank GROUP BY stage, module)
SELECT stage, module, own, usual FROM of_rank JOIN usual USING (stage, module) WHERE rank = ${rank} ORDER BY stage, module LIMIT 20000`;

// A tree for the library; `delta` is how much longer than the majority.
function tree(paths) {
  const root = { name: 'all', value: 0, delta: 0, children: new Map() };
  for (const { path, value, delta = 0 } of paths) {
    let at = root;
    at.value += value;
    at.delta += delta;
    for (const name of path) {
      if (!at.children.has(name)) at.children.set(name, { name, value: 0, delta: 0, children: new Map() });
      at = at.children.get(name);
      at.value += value;
      at.delta += delta;
    }
  }
  const plain = (node) => ({ ...node, children: [...node.children.values()].map(plain) });
  return plain(root);
}

const folded = (text) => text.trim().split('\n').filter(Boolean).map((line) => {
  const at = line.lastIndexOf(' ');
  return { path: line.slice(0, at).split(';'), value: Number(line.slice(at + 1)) };
});

function Flames({ data, diff, show, label }) {
  const box = useRef(null);
  const zoomed = useRef(false);
  const [told, tell] = useState('');
  useEffect(() => {
    const draw = () => {
      if (!box.current || zoomed.current) return; // new data would throw out whoever looks inside
      box.current.textContent = '';
      const width = Math.max(280, box.current.clientWidth);
      const chart = flamegraph().width(width).cellHeight(20).minFrameSize(2).transitionDuration(0).sort(true).inverted(true).selfValue(false);
      const most = Math.max(1e-12, ...flat(data).map((one) => Math.abs(one.delta)));
      if (diff) chart.setColorMapper((node) => shade(node.data.delta / most));
      else chart.setColorMapper((node) => warm(node.data.name));
      chart.setLabelHandler((node) => describe(node.data, show, diff));
      chart.onClick((node) => { zoomed.current = node.depth > 0; });
      chart.onHover((node) => tell(describe(node.data, show, diff)));
      select(box.current).datum(structuredClone(data)).call(chart);
    };
    draw();
    const seen = new ResizeObserver(draw);
    seen.observe(box.current.parentElement);
    return () => seen.disconnect();
  }, [data, diff]);
  return (
    <>
      <div class="flames" ref={box} role="img" aria-label={label} />
      <p class="muted told" aria-live="polite">{told || 'Point at a frame; click to look inside, and on the top one to get out again.'}</p>
    </>
  );
}

const flat = (node) => [node, ...node.children.flatMap(flat)];

function describe(data, show, diff) {
  return `${data.name}: ${show(data.value)}${diff ? `, ${data.delta >= 0 ? '+' : '−'}${show(Math.abs(data.delta))} against the majority` : ''}`;
}

// Red: longer than the majority, blue: shorter, grey: the same.
function shade(share) {
  const light = 88 - 40 * Math.min(1, Math.abs(share));
  return Math.abs(share) < 0.02 ? 'hsl(220 8% 86%)' : `hsl(${share > 0 ? 8 : 214} 78% ${light}%)`;
}

function warm(name) {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.charCodeAt(0)) % 997;
  return `hsl(${22 + (hash % 30)} ${70 + (hash % 20)}% ${66 + (hash % 12)}%)`;
}

export default function Flame({ params }) {
  const { ranks, session, job } = useContext(Page);
  const rank = Number(params.rank ?? ranks[0]?.rank ?? 0);
  const diff = params.diff === '1';
  const sql = modules(rank);
  const found = useSql(sql, 10);
  const [profile, setProfile] = useState({});
  const here = ranks.find((one) => one.rank === rank);
  const own = found.rows;
  const data = useMemo(() => tree(own.map((row) => ({ path: [row.stage, ...row.module.split('.')], value: row.own, delta: row.own - row.usual }))), [found.data]);
  const worst = [...own].sort((a, b) => (b.own - b.usual) - (a.own - a.usual))[0];
  const largest = [...own].sort((a, b) => b.own - a.own)[0];

  async function take() {
    setProfile({ busy: true });
    try {
      const chosen = new URLSearchParams({ rank, ...(job ? { job } : {}) });
      const answer = await ask('POST', `/v1/profile/cpu?${chosen}`, { format: 'folded', seconds: 3 }, { raw: true });
      const paths = folded(await answer.text());
      setProfile({ rank, tree: paths.length ? tree(paths) : null, done: true, number: performance.now() });
    } catch (error) {
      setProfile({ error });
    }
  }

  return (
    <>
      <Verdict>
        {diff && worst && ranks.length > 1 ? `rank ${rank} spends ${seconds(Math.max(0, worst.own - worst.usual))} a step more in ${worst.module} ${worst.stage} than the median rank`
          : largest ? `most own time on rank ${rank}: ${largest.module} ${largest.stage}, ${seconds(largest.own)} a step` : found.loading ? 'reading the modules …' : 'no module has been timed yet'}
      </Verdict>
      <div class="row">
        <RankChoice params={params} />
        <Choice name="diff" label="Show" params={params} fallback="" options={[['', 'this rank'], ['1', 'difference from the majority']]} />
      </div>
      <div class="panels">
        <Panel title={diff ? `Rank ${rank} against the median rank` : `Modules of rank ${rank}`} note={diff ? 'red: longer, blue: shorter' : 'time a step, ten sampled steps'} sql={sql} wide>
          <Answer of={found} empty={`Rank ${rank} has no sampled step yet: module times are taken in one step of trace.every.`}>
            <Flames key={`${rank} ${diff}`} data={data} diff={diff} show={seconds} label={`Flame graph of the modules of rank ${rank}`} />
          </Answer>
        </Panel>
        {session.role === 'control' && (
          <Panel title="Python stacks" note="sampled from outside; the rank is not stopped" wide>
            <p><button type="button" disabled={profile.busy} onClick={take}>{profile.busy ? 'Sampling for 3 s …' : `Sample rank ${rank} for 3 s`}</button>
              {here && here.host !== session.host && <span class="muted"> Rank {rank} is on {here.host}: open the dashboard there.</span>}</p>
            {profile.error && <Failure error={profile.error} />}
            {profile.done && (profile.tree ? <Flames key={profile.number} data={profile.tree} show={(value) => `${value} samples`} label={`Flame graph of the stacks of rank ${profile.rank}`} /> : <p class="state">No thread was running Python.</p>)}
          </Panel>
        )}
      </div>
    </>
  );
}
