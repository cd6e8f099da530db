// Values as people read them; the units are those of the tables: seconds, MiB.

export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0 s';
  if (size < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 0.1) return `${(value * 1e3).toPrecision(2)} ms`;
  if (size < 1) return `${(value * 1e3).toFixed(0)} ms`;
  if (size < 120) return `${value.toPrecision(3)} s`;
  return age(value);
}

export function age(value) {
  if (value == null) return '–';
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86400)} days`;
}

export function mebibytes(value) {
  if (value == null || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1024 * 1024) return `${(value / 1048576).toPrecision(3)} TiB`;
  if (size >= 1024) return `${(value / 1024).toPrecision(3)} GiB`;
  if (size >= 1) return `${size >= 100 ? value.toFixed(0) : value.toPrecision(3)} MiB`;
  if (size === 0) return '0';
  return `${(value * 1024).toFixed(size * 1024 < 10 ? 1 : 0)} KiB`;
}

export function percent(value) {
  if (value == null || !Number.isFinite(value)) return '–';
  return `${(value * 100).toFixed(Math.abs(value) < 0.1 && value !== 0 ? 1 : 0)} %`;
}

export function number(value) {
  if (value == null || value === '') return '–';
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) return value.toLocaleString('en');
  const rounded = Number(value.toPrecision(5));
  return Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3 ? rounded.toExponential() : String(rounded);
}

export function cell(value) {
  if (value == null) return 'NULL';
  if (typeof value === 'object') return JSON.stringify(value);
  return typeof value === 'number' && !Number.isInteger(value) ? String(Number(value.toPrecision(7))) : String(value);
}

// 0, 1, 2, 5 as "0-2, 5".
export function ranks(list, most = 12) {
  const sorted = [...new Set(list)].sort((a, b) => a - b);
  const parts = [];
  for (const rank of sorted) {
    const last = parts.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  const shown = parts.slice(0, most).map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`));
  return shown.join(', ') + (parts.length > most ? ', …' : '');
}

export const num = (count, noun) => `${number(count)} ${noun}${count === 1 ? '' : 's'}`;
