// Polling: pauses while the page is hidden, and slows down when responses take long.

/**
 * Calls `ask` every `seconds` seconds, and immediately when the page becomes visible; returns a function that calls it now.
 *
 * `ask` handles its errors; polling continues after them.
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
