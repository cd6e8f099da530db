// Hosts, GPUs, workers: what the job runs on.
import { useContext } from 'preact/hooks';
import { age, mebibytes, num, number, percent, seconds } from '../format.js';
import { Page, useSql } from '../live.js';
import { Answer, Panel, Table, Unanswered, Verdict } from '../parts.jsx';

const HOSTS = `
SELECT host, count(*) AS ranks, sum(cpu) AS cores, sum(run_delay) AS delayed, sum(rss) AS rss, max(shm_used) AS shm_used, max(shm_free) AS shm_free,
    sum(disk_read) AS disk_read, sum(io_written) AS io_written FROM (
    SELECT host, rank, pid, arg_max(cpu / period, ts) AS cpu, arg_max(run_delay / period, ts) AS run_delay, arg_max(rss, ts) AS rss,
        arg_max(shm_used, ts) AS shm_used, arg_max(shm_free, ts) AS shm_free, arg_max(disk_read / period, ts) AS disk_read,
        arg_max(io_written / period, ts) AS io_written
    FROM process.samples GROUP BY host, rank, pid)
GROUP BY host ORDER BY host`;

const GPUS = `
SELECT DISTINCT ON (host, uuid) host, rank, gpu, name, utilization, memory_used, memory_total, power, temperature, throttle, num_xids
FROM gpu.samples ORDER BY host, uuid, ts DESC`;

const WORKERS = `
SELECT host, rank, worker_pid, state, waits_in, age, cpu_user / greatest(age, 0.001) AS busy, rss FROM python.workers ORDER BY host, rank, worker_pid LIMIT 2000`;

export default function Hosts() {
  const { ranks, unanswered, answered } = useContext(Page);
  const hosts = useSql(HOSTS, 5);
  const gpus = useSql(GPUS, 5);
  const workers = useSql(WORKERS, 8);
  const contended = hosts.rows.filter((row) => row.delayed / row.ranks > 0.05);
  return (
    <>
      <Verdict tone={contended.length ? 'warn' : 'unknown'}>
        {hosts.rows.length ? `${num(ranks.length, 'rank')} on ${num(hosts.rows.length, 'host')}${!gpus.data ? '' : gpus.rows.length ? `, ${num(gpus.rows.length, 'GPU')}` : ', no GPU seen'}${workers.data ? `, ${num(workers.rows.length, 'loader worker')}` : ''}${contended.length ? `; ${contended.map((row) => row.host).slice(0, 4).join(', ')}: training threads wait for a processor ${percent(contended[0].delayed / contended[0].ranks)} of the time` : ''}` : hosts.loading ? 'asking the hosts …' : 'no sample yet'}
      </Verdict>
      <Unanswered answer={{ unanswered, answered: answered ?? [] }} />
      <div class="panels">
        <Panel title="Hosts" note="the newest second" sql={HOSTS} wide>
          <Answer of={hosts} empty="No sample yet: one is taken every second.">
            <Table label="Hosts" rows={hosts.rows} columns={[['host'], ['ranks', 'ranks', number, true], ['cores', 'busy cores', (value) => (value == null ? '–' : value.toFixed(1)), true], ['delayed', 'waiting for a CPU', (value, row) => percent(value / row.ranks), true], ['rss', 'resident', mebibytes, true], ['shm_used', '/dev/shm used', mebibytes, true], ['shm_free', 'free', mebibytes, true], ['disk_read', 'disk read/s', mebibytes, true], ['io_written', 'written/s', mebibytes, true]]} />
          </Answer>
        </Panel>
        <Panel title="GPUs" sql={GPUS} wide>
          <Answer of={gpus} empty="No GPU is visible through NVML on these hosts.">
            <Table label="GPUs" rows={gpus.rows} columns={[['host'], ['rank', 'rank', (value) => value ?? '–', true], ['gpu', 'GPU', null, true], ['name'], ['utilization', 'busy', percent, true], ['memory_used', 'memory', (value, row) => `${mebibytes(value)} of ${mebibytes(row.memory_total)}`, true], ['power', 'power', (value) => (value == null ? '–' : `${number(value)} W`), true], ['temperature', 'chip', (value) => (value == null ? '–' : `${number(value)} °C`), true], ['throttle', 'throttled', (value) => value ?? 'no'], ['num_xids', 'Xid errors', (value) => value ?? '–', true]]} />
          </Answer>
        </Panel>
        <Panel title="DataLoader workers" sql={WORKERS} wide>
          <Answer of={workers} empty="No worker process: the ranks load their data themselves.">
            <Table label="Workers" rows={workers.rows} columns={[['host'], ['rank', 'rank', null, true], ['worker_pid', 'pid', null, true], ['state'], ['waits_in', 'waits in', (value) => value ?? '–'], ['age', 'age', age, true], ['busy', 'busy', percent, true], ['rss', 'resident', mebibytes, true]]} />
          </Answer>
        </Panel>
      </div>
    </>
  );
}
