// Dark and light: the system's choice, or that of whoever looks, kept by the browser.
import { createContext } from 'preact';
import { useEffect, useState } from 'preact/hooks';

const NAMES = ['text', 'muted', 'line', 'grid', 'raised', 'surface', 'accent', 'good', 'warn', 'bad', 'cold'];

export const Theme = createContext({ colours: {} });

export function useTheme() {
  const [chosen, set] = useState(() => localStorage.getItem('probe-theme') ?? 'auto');
  const [colours, setColours] = useState(resolved);
  useEffect(() => {
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem('probe-theme', chosen);
    const system = matchMedia('(prefers-color-scheme: dark)');
    const again = () => setColours(resolved());
    again();
    system.addEventListener('change', again);
    return () => system.removeEventListener('change', again);
  }, [chosen]);
  const order = ['auto', 'light', 'dark'];
  return { chosen, next: () => set(order[(order.indexOf(chosen) + 1) % 3]), colours };
}

function resolved() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ...Object.fromEntries(NAMES.map((name) => [name, colour(name)])),
    series: [1, 2, 3, 4, 5, 6, 7, 8].map((at) => colour(`series-${at}`)),
  };
}
