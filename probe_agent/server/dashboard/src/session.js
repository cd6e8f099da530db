// The way in: a one-time code from the address becomes a cookie that no script sees, and a key that stays with this origin.

const KEY = 'probe-key';

export class Problem extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

// `signal` ends the question; the server notices and stops what it does for us.
export async function ask(method, path, body, { signal, raw } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      credentials: 'same-origin',
      headers: { 'X-Probe-Key': localStorage.getItem(KEY) ?? '', ...(body ? { 'Content-Type': 'application/json' } : {}) },
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch (failure) {
    if (failure.name === 'AbortError') throw failure;
    throw new Problem('the host server does not answer', 'it may have ended: open the dashboard again with probe … dashboard', 0);
  }
  if (!response.ok) {
    const said = await response.json().then((answer) => answer.error, () => null);
    throw new Problem(said?.message ?? `status ${response.status}`, said?.hint ?? '', response.status);
  }
  return raw ? response : response.json();
}

export async function enter() {
  const code = /[#&]code=([\w-]+)/.exec(location.hash)?.[1];
  if (code) {
    const job = /&job=([a-z]+)/.exec(location.hash)?.[1];
    history.replaceState(null, '', `${location.pathname}#/well${job ? `?job=${job}` : ''}`);
    const session = await ask('POST', '/v1/dashboard/session', { code });
    localStorage.setItem(KEY, session.key);
    return session;
  }
  return ask('GET', '/v1/dashboard/session');
}

export async function leave() {
  await ask('DELETE', '/v1/dashboard/session').catch(() => null);
  localStorage.removeItem(KEY);
  location.reload();
}
