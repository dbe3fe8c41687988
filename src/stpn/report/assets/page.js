/* What happens when the page opens: the theme, the figures, the viewer. */
"use strict";

const Page = (() => {
  const root = document.documentElement;

  /* A page opened from a file may have no storage: the choice then lasts until it is closed. */
  function remembered(value) {
    try {
      if (value === undefined) return localStorage.getItem("stpn-theme");
      localStorage.setItem("stpn-theme", value);
    } catch { /* nothing to remember with */ }
    return null;
  }

  function setUpTheme() {
    const stored = remembered();
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      remembered(root.dataset.theme);
    });
  }

  setUpTheme();
  const data = JSON.parse(document.getElementById("report-data").textContent);
  for (const figure of data.figures)
    Plots.render(document.getElementById(`figure-${figure.name}`), figure, data.models);
  const place = document.getElementById("viewer");
  const viewer = place && data.networks.length ? Viewer.mount(place, data.networks) : null;
  return { data, viewer };
})();
