// Before anything is drawn: the theme that was chosen here before, if any. Not a module, so that nobody sees the other one first.
const chosen = localStorage.getItem("headrace-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
