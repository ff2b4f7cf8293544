// Elements are built by calls, never from markup in strings, so that no text of a service can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [kind, handler] of Object.entries(value)) element.addEventListener(kind, handler);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** Returns an HTML element; `on` has event handlers, `text` is its text, all others are attributes. */
export function h(tag, given, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** Returns an SVG element, in the same way. */
export function s(tag, given, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

/** Returns the element of index.html with that id. */
export function at(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element '${id}'`);
  return found;
}

/** Sets a text only if it differs, which avoids a new layout. */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Sets an attribute only if it differs; null removes it. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const said = value === true ? "" : String(value);
    if (element.getAttribute(name) !== said) element.setAttribute(name, said);
  }
}

/** Returns a function that schedules `paint` in an animation frame, at most `perSecond` times per second. */
export function painter(paint, perSecond = 5) {
  let due = false;
  let last = -Infinity;
  const run = () => {
    due = false;
    last = performance.now();
    paint();
  };
  return () => {
    if (due) return;
    due = true;
    const wait = 1000 / perSecond - (performance.now() - last);
    if (wait <= 0) requestAnimationFrame(run);
    else setTimeout(() => requestAnimationFrame(run), wait);
  };
}
