// Runs before the first paint: a chosen theme or language must not flash the other one.
try {
  const theme = localStorage.getItem("dgpu.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  const language = localStorage.getItem("dgpu.language") ?? navigator.language;
  document.documentElement.lang = language.startsWith("zh") ? "zh-CN" : "en";
} catch {
  // storage may be forbidden; the defaults do
}
