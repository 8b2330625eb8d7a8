// Every view has a URL: #/run/NAME/step/train/3?sort=reward. Names are escaped, so a run's name may contain slashes.

export function parse(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { parts, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function link(parts, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const text = asked.toString();
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

export const runLink = (run, ...rest) => link(["run", run, ...rest.filter((part) => typeof part !== "object").map(String)], rest.find((part) => typeof part === "object") ?? {});

/** Change the query without showing the view again: it shows the change already. */
export function noteQuery(changes) {
  const { parts, query } = parse();
  history.replaceState(null, "", link(parts, { ...query, ...changes }));
}

/** Change the query of the view that is shown; `replaced` leaves no trace in the history. */
export function setQuery(changes, replaced = false) {
  const { parts, query } = parse();
  const hash = link(parts, { ...query, ...changes });
  if (hash === location.hash) return;
  if (replaced) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}

export function go(hash) {
  location.hash = hash;
}
