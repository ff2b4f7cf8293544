// Light and dark theme: the system's setting until the user chooses.

import { at, mark } from "/page/js/dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

function show() {
  mark(at("theme"), "aria-pressed", String(isDark()));
  mark(at("theme"), "title", isDark() ? "Use light colours" : "Use dark colours");
}

/** Starts the theme button. */
export function startTheme() {
  at("theme").addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = wanted;
    localStorage.setItem("headrace-theme", wanted);
    show();
    document.dispatchEvent(new Event("headrace-theme"));
  });
  dark.addEventListener("change", show);
  show();
}
