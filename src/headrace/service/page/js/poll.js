// Asking again and again: not while nobody looks, and the less often the longer an answer takes.

/**
 * Calls `ask` every so many seconds, and at once when the page is looked at again; returns what asks now.
 *
 * An error is the business of `ask`; the next call comes all the same.
 */
export function every(seconds, ask) {
  let timer = null;
  let running = null;
  const go = () => {
    clearTimeout(timer);
    running ??= work().finally(() => {
      running = null;
    });
    return running;
  };
  const work = async () => {
    const begun = performance.now();
    try {
      await ask();
    } catch (error) {
      if (error?.status === undefined) console.error(error);
    }
    const took = performance.now() - begun;
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(go, Math.max(seconds * 1000, 5 * took));
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else go();
  });
  go();
  return go;
}
