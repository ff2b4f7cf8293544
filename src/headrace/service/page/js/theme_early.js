// Applies the user's theme before the first paint. Not a module, because modules run after the page is first drawn.
const chosen = localStorage.getItem("headrace-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
