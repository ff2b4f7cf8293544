// Dialogs: the token, the confirmation of a removal, the keyboard shortcuts. Esc closes all but the token dialog.

import { keepToken } from "/page/js/api.js";
import { at, say } from "/page/js/dom.js";

/** Returns a function that asks for a token; `given()` is called when the user entered one. */
export function tokenDialog(given) {
  const dialog = at("token");
  dialog.addEventListener("cancel", (event) => event.preventDefault()); // the page cannot load anything without a token
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

/** Asks the user to confirm; resolves to true for yes. */
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

/** Makes `data-close` buttons, and clicks outside a dialog, close it. */
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
