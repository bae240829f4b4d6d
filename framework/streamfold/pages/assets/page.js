setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
if (data.graph) startGraph();
if (data.dashboard) startDashboard();
report();
showLinks();
