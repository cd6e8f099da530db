// What the page shows is in its address, #/view?name=value, so that a link shows the same. `useHash` re-renders on change.
import { useEffect, useState } from 'preact/hooks';

export function read() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { view: path || 'well', params: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(view, changes = {}, keep = ['job', 'last']) {
  const { params } = read();
  const kept = Object.fromEntries(Object.entries(params).filter(([name]) => keep.includes(name)));
  const all = Object.entries({ ...kept, ...changes }).filter(([, value]) => value != null && value !== '');
  return `#/${view}` + (all.length ? `?${new URLSearchParams(all)}` : '');
}

// Change parameters of this view; the browser's back button undoes a step only if `push`.
export function change(changes, push = false) {
  const { view, params } = read();
  const target = link(view, { ...params, ...changes }, []);
  if (push) location.hash = target;
  else {
    history.replaceState(null, '', target);
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  }
}

export function useHash() {
  const [state, set] = useState(read);
  useEffect(() => {
    const moved = () => set(read());
    window.addEventListener('hashchange', moved);
    return () => window.removeEventListener('hashchange', moved);
  }, []);
  return state;
}
