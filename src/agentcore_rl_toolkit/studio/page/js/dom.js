// Elements from values. Everything that is shown passes through here: strings become text, never markup, and characters
// that would hide or reorder text are shown by their code.

const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffc\ud800-\udfff]|[\u{e0000}-\u{e0fff}]/gu;
const NAMES = { 0x1b: "ESC", 0: "NUL", 7: "BEL", 8: "BS", 0xd: "CR", 0x7f: "DEL", 0xfeff: "BOM", 0x200b: "ZWSP",
  0x200e: "LRM", 0x200f: "RLM", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO",
  0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI" };
const MOST_MARKS = 2000;

function nameOf(character) {
  const code = character.codePointAt(0);
  return NAMES[code] ?? "U+" + code.toString(16).toUpperCase().padStart(4, "0");
}

/** Text with its invisible characters written out. */
export function plain(text) {
  return String(text).replace(ODD, (one) => `⟨${nameOf(one)}⟩`);
}

/** Nodes for a text: invisible characters become marks of their own. */
export function textNodes(text) {
  const given = String(text);
  const fragment = document.createDocumentFragment();
  let from = 0, marks = 0;
  for (const match of given.matchAll(ODD)) {
    if (++marks > MOST_MARKS) {
      fragment.append(plain(given.slice(from)));
      return fragment;
    }
    if (match.index > from) fragment.append(given.slice(from, match.index));
    const mark = document.createElement("span");
    mark.className = "odd";
    mark.textContent = nameOf(match[0]);
    mark.title = `character U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}, not applied`;
    fragment.append(mark);
    from = match.index + match[0].length;
  }
  if (from < given.length) fragment.append(given.slice(from));
  return fragment;
}

/** An element. `props`: class, style (an object), on… handlers, and attributes; null and false leave one out. */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.className = `${element.className} ${value}`.trim();
    else if (key === "style") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : plain(value));
  }
  fill(element, children);
  return element;
}

export function fill(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : textNodes(child));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return fill(element, children);
}

/** Whether a value is a text that the server cut. */
export const isClipped = (value) => value !== null && typeof value === "object" && "$clipped" in value;

/** A value's text, as far as it came. */
export const textOf = (value) =>
  isClipped(value) ? value.$clipped : typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value);

const PIECE = 6000;

/** A block of text of any length: a piece at a time, and what the server cut by `more(at, start)`. */
export function longText(value, more = null, kind = "") {
  const block = h("div.text", { class: kind, dir: "auto" });
  let text = textOf(value), shown = 0;
  const length = isClipped(value) ? value.length : text.length;
  const button = h("button.more", { type: "button", onclick: grow });
  async function grow() {
    const end = shown === 0 ? PIECE : shown + 20 * PIECE;
    while (end > text.length && text.length < length && more) {
      const piece = await more(value.at, text.length);
      if (!piece) break;
      text += piece;
    }
    block.append(textNodes(text.slice(shown, end)));
    shown = Math.min(end, text.length);
    offer();
  }
  function offer() {
    button.remove();
    if (shown >= length) return;
    const left = `${count(length - shown)} of ${count(length)} characters`;
    if (shown < text.length || more) block.append(replace(button, `Show more · ${left} left`));
    else block.append(h("small.quiet", null, ` … ${left} are not in this report`));
  }
  if (text.length || !length) {
    block.append(textNodes(text.slice(0, PIECE)));
    shown = Math.min(PIECE, text.length);
  }
  offer();
  return block;
}

const count = (value) => value.toLocaleString("en-US");
