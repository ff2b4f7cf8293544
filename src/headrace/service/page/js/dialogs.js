// Dialogs that ask or tell something: the token, whether to remove a query, the keys. Esc closes all but the first.

import { keepToken } from "/page/js/api.js";
import { at, say } from "/page/js/dom.js";

/** Returns what asks for a token; `given()` is called when there is one. */
export function tokenDialog(given) {
  const dialog = at("token");
  dialog.addEventListener("cancel", (event) => event.preventDefault()); // nothing can be shown without one
  at("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const token = at("token-input").value.trim();
    if (!token) return;
    keepToken(token);
    at("token-input").value = "";
    dialog.close();
    given();
  });
  return (problem) => {
    say(at("token-problem"), problem);
    if (!dialog.open) dialog.showModal();
  };
}

/** Asks; resolves to whether the answer is yes. */
export function confirmed(title, text, yes) {
  const dialog = at("confirm");
  say(at("confirm-title"), title);
  say(at("confirm-text"), text);
  say(at("confirm-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** Makes every button that says so close its dialog, and a click beside a dialog, too. */
export function startDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    for (const button of dialog.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => dialog.close(button.dataset.close));
    }
    dialog.addEventListener("pointerdown", (event) => {
      if (event.target === dialog && dialog.id !== "token") dialog.close();
    });
  }
}
