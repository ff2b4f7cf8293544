// Elements made of calls: no markup in strings, so that nothing a service says can become markup.

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

/** Returns an element of HTML; `on` has handlers, `text` its text, all else are attributes. */
export function h(tag, given, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** Returns an element of SVG, in the same way. */
export function s(tag, given, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

/** Returns the one element with that id, which index.html has. */
export function at(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element '${id}'`);
  return found;
}

/** Sets a text only where it differs: what does not change is not laid out again. */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Sets an attribute only where it differs; null takes it away. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const said = value === true ? "" : String(value);
    if (element.getAttribute(name) !== said) element.setAttribute(name, said);
  }
}

/** Returns a function that has `paint` called in a frame, at most `perSecond` times a second, however often it is called. */
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
